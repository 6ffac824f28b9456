// Declares the kernels of grouped_linear for one type of weights; src/kernels/cuda/CMakeLists.txt
// instantiates them. This header is internal to experts/ and includes no CUDA header.
#pragma once

#include "kernels/cuda/experts/choice.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/gemm/skinny/schedule.h"

namespace hadal::cuda {

namespace skinny {
// Supports all types but float32.
template <WeightType kType>
void grouped_of(const GroupedLinearParams& params, const Launch& launch, const Schedule& schedule);
}  // namespace skinny

namespace grouped_wgmma {
// Supports bf16 and the 8-bit types.
template <WeightType kType>
void linear_of(const GroupedLinearParams& params, GroupedTile tile, const Launch& launch);
}  // namespace grouped_wgmma

}  // namespace hadal::cuda
