// The instantiations of grouped_linear by weight streaming for row and channel scales, in FP8 and INT8.
#include "kernels/cuda/experts/grouped/skinny.cuh"

namespace hadal::cuda::skinny {

void grouped_channel(const GroupedLinearParams& p, const Launch& launch, const Schedule& schedule) {
  if (p.w.type == WeightType::kFp8Channel)
    return grouped_of<WeightType::kFp8Channel, false>(p, launch, schedule);
  grouped_of<WeightType::kInt8Channel, false>(p, launch, schedule);
}

}  // namespace hadal::cuda::skinny
