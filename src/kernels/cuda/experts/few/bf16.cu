// Experts for few tokens in bf16.
#include "kernels/cuda/experts/few/kernel.cuh"

namespace hadal::cuda::few {

void experts_bf16(const FewExpertsParams& p, const float* parts, float* sums, const Launch& launch) {
  launch_few_of<WeightType::kBF16>(p, parts, sums, launch);
}

}  // namespace hadal::cuda::few
