// The instantiations of grouped_linear by weight streaming for INT8 with block scales.
#include "kernels/cuda/experts/grouped/skinny.cuh"

namespace hadal::cuda::skinny {

void grouped_int8(const GroupedLinearParams& p, const Launch& launch, const Schedule& schedule) {
  grouped_of<WeightType::kInt8Block, false>(p, launch, schedule);
}

}  // namespace hadal::cuda::skinny
