// Experts for few tokens in float16.
#include "kernels/cuda/experts/few/kernel.cuh"

namespace hadal::cuda::few {

void experts_f16(const FewExpertsParams& p, const float* parts, float* sums, const Launch& launch) {
  launch_few_of<WeightType::kF16>(p, parts, sums, launch);
}

}  // namespace hadal::cuda::few
