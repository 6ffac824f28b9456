// The instantiations of linear by weight streaming for INT8 with block scales.
#include "kernels/cuda/gemm/skinny_linear.cuh"

namespace hadal::cuda::skinny {

void linear_int8(const LinearParams& p, const Launch& launch, const Schedule& schedule) {
  linear_of<WeightType::kInt8Block, false>(p, launch, schedule);
}

}  // namespace hadal::cuda::skinny
