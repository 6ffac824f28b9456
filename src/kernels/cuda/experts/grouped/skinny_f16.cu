// The float16 instantiations of grouped_linear by weight streaming.
#include "kernels/cuda/experts/grouped/skinny.cuh"

namespace hadal::cuda::skinny {

void grouped_f16(const GroupedLinearParams& p, const Launch& launch, const Schedule& schedule) {
  grouped_of<WeightType::kF16, false>(p, launch, schedule);
}

}  // namespace hadal::cuda::skinny
