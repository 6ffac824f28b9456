// Holds the measured choices of all products, as read from the files of --kernel-config-dir. They are filled
// once; afterwards any thread may read them.
#pragma once

#include "kernels/cuda/experts/choice.h"
#include "kernels/cuda/gemm/choice.h"

namespace hadal::cuda {

struct ProductChoices {
  LinearTable linear;
  GroupedTable grouped;
  bool empty() const { return linear.num_shapes() + grouped.num_shapes() == 0; }
};

}  // namespace hadal::cuda
