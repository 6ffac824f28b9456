// The float16 instantiations of linear by weight streaming.
#include "kernels/cuda/gemm/skinny_linear.cuh"

namespace hadal::cuda::skinny {

void linear_f16(const LinearParams& p, const Launch& launch, const Schedule& schedule) {
  linear_of<WeightType::kF16, false>(p, launch, schedule);
}

}  // namespace hadal::cuda::skinny
