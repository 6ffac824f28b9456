// The tiled grouped product's instantiations, one a file so that they compile side by side. Internal to
// experts/.
#pragma once

#include "kernels/cuda/experts/choice.h"
#include "kernels/cuda/experts/experts.h"

namespace hadal::cuda::grouped_wgmma {

void run_bf16(const GroupedLinearParams& params, GroupedTile tile, const Launch& launch);
void run_fp8_block(const GroupedLinearParams& params, GroupedTile tile, const Launch& launch);
void run_fp8_channel(const GroupedLinearParams& params, GroupedTile tile, const Launch& launch);
void run_int8_block(const GroupedLinearParams& params, GroupedTile tile, const Launch& launch);
void run_int8_channel(const GroupedLinearParams& params, GroupedTile tile, const Launch& launch);

// Whether an instantiation is what experts/choice.h says.
template <class C>
constexpr bool is(const GroupedChoice& choice) {
  return choice.block_m == C::kBlockM && choice.block_n == C::kBlockN && choice.stages == C::kStages &&
         choice.cluster == C::kCluster && C::kMaxExperts == kMaxTiledExperts;
}

}  // namespace hadal::cuda::grouped_wgmma
