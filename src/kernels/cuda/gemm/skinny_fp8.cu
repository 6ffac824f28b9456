// The FP8 instantiations of linear by weight streaming.
#include "kernels/cuda/gemm/skinny_linear.cuh"

namespace hadal::cuda::skinny {

void linear_fp8(const LinearParams& p, const Launch& launch, const Schedule& schedule) {
  linear_of<WeightType::kFp8Block>(p, launch, schedule);
}

}  // namespace hadal::cuda::skinny
