// The instantiations of thin_linear for INT8, and for FP8 with channel scales.
#include "kernels/cuda/gemm/thin.cuh"

namespace hadal::cuda::thin {

void linear_w8a8(const LinearParams& p, const Launch& launch) {
  if (p.w.type == WeightType::kInt8Block) return linear_of<WeightType::kInt8Block>(p, launch);
  if (p.w.type == WeightType::kFp8Channel) return linear_of<WeightType::kFp8Channel>(p, launch);
  linear_of<WeightType::kInt8Channel>(p, launch);
}

}  // namespace hadal::cuda::thin
