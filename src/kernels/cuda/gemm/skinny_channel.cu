// The instantiations of linear by weight streaming for row and channel scales, in FP8 and INT8.
#include "kernels/cuda/gemm/skinny_linear.cuh"

namespace hadal::cuda::skinny {

void linear_channel(const LinearParams& p, const Launch& launch, const Schedule& schedule) {
  if (p.w.type == WeightType::kFp8Channel)
    return linear_of<WeightType::kFp8Channel, false>(p, launch, schedule);
  linear_of<WeightType::kInt8Channel, false>(p, launch, schedule);
}

}  // namespace hadal::cuda::skinny
