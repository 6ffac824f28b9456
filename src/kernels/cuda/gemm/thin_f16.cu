// The instantiations of thin_linear for float16.
#include "kernels/cuda/gemm/thin.cuh"

namespace hadal::cuda::thin {

void linear_f16(const LinearParams& p, const Launch& launch) {
  linear_of<WeightType::kF16>(p, launch);
}

}  // namespace hadal::cuda::thin
