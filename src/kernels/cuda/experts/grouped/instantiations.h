// The kernels of grouped_linear for one type of weights. CMakeLists.txt of kernels/cuda instantiates them.
// Internal to experts/; free of CUDA headers.
#pragma once

#include "kernels/cuda/experts/choice.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/gemm/skinny/schedule.h"

namespace hadal::cuda {

namespace skinny {
// All types but float32.
template <WeightType kType>
void grouped_of(const GroupedLinearParams& params, const Launch& launch, const Schedule& schedule);
}  // namespace skinny

namespace grouped_wgmma {
// bf16 and the 8-bit types.
template <WeightType kType>
void linear_of(const GroupedLinearParams& params, GroupedTile tile, const Launch& launch);
}  // namespace grouped_wgmma

}  // namespace hadal::cuda
