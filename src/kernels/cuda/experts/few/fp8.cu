// Experts for few tokens in FP8 with block scales.
#include "kernels/cuda/experts/few/kernel.cuh"

namespace hadal::cuda::few {

void experts_fp8(const FewExpertsParams& p, const float* parts, float* sums, const Launch& launch) {
  launch_few_of<WeightType::kFp8Block>(p, parts, sums, launch);
}

}  // namespace hadal::cuda::few
