// Runs linear for small matrices and a handful of rows (gemm/thin/kernel.cuh): it checks the arguments and
// chooses the instantiation.
#include "kernels/cuda/gemm/thin/thin.h"

#include "base/check.h"
#include "kernels/cuda/gemm/variants.h"

namespace hadal::cuda {

void thin_linear(const DenseLinearParams& p, const Launch& launch) {
  HADAL_CHECK(thin::supports(linear_shape(p)), "thin_linear does not support m {}, n {}, k {}", p.m, p.w.n,
              p.w.k);
  switch (p.w.type) {
    case WeightType::kBF16:
      return thin::linear_of<WeightType::kBF16>(p, launch);
    case WeightType::kF16:
      return thin::linear_of<WeightType::kF16>(p, launch);
    case WeightType::kFp8Block:
      return thin::linear_of<WeightType::kFp8Block>(p, launch);
    case WeightType::kFp8Channel:
      return thin::linear_of<WeightType::kFp8Channel>(p, launch);
    case WeightType::kInt8Block:
      return thin::linear_of<WeightType::kInt8Block>(p, launch);
    case WeightType::kInt8Channel:
      return thin::linear_of<WeightType::kInt8Channel>(p, launch);
    case WeightType::kF32:
      break;
  }
}

}  // namespace hadal::cuda
