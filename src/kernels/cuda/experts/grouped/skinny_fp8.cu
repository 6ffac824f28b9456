// The FP8 instantiations of grouped_linear by weight streaming.
#include "kernels/cuda/experts/grouped/skinny.cuh"

namespace hadal::cuda::skinny {

void grouped_fp8(const GroupedLinearParams& p, const Launch& launch, const Schedule& schedule) {
  grouped_of<WeightType::kFp8Block>(p, launch, schedule);
}

}  // namespace hadal::cuda::skinny
