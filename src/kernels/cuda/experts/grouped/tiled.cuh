// Defines the tiles of experts/choice.h as instantiations of the tiled kernel (gemm/tiled/kernel.cuh), for
// one type of weights.
#pragma once

#include "kernels/cuda/experts/grouped/instantiations.h"
#include "kernels/cuda/gemm/tiled/kernel.cuh"

namespace hadal::cuda::grouped_wgmma {

// Returns true if the instantiation has the tile that experts/choice.h describes.
template <class C>
constexpr bool is(const GroupedChoice& choice) {
  return choice.block_m == C::kBlockM && choice.block_n == C::kBlockN && choice.stages == C::kStages &&
         choice.cluster == C::kCluster && C::kMaxExperts == kMaxTiledExperts;
}

// `order` has no effect for bf16, whose sums stay in the tensor cores. `stream_w` says that 8-bit weights are
// read only once, which is true with wide tiles.
struct Shape256x128 {
  static constexpr WgmmaTile kTile{.waves = 2, .columns = 128, .stages = 4, .order = WgmmaOrder::kLead};
};
struct Shape128x128 {
  static constexpr WgmmaTile kTile{.waves = 1, .columns = 128, .stages = 6, .order = WgmmaOrder::kAhead};
};
template <typename T>
struct Shape128x256 {
  static constexpr WgmmaTile kTile{.waves = 2,
                                   .columns = 128,
                                   .stages = 4,
                                   .order = WgmmaOrder::kLead,
                                   .beside = true,
                                   .stream_w = sizeof(T) == 1};
};
template <typename T>
struct Shape64x256 {
  static constexpr WgmmaTile kTile{.waves = 1,
                                   .columns = 128,
                                   .stages = 5,
                                   .cluster = 1,
                                   .order = WgmmaOrder::kAhead,
                                   .beside = true,
                                   .stream_w = sizeof(T) == 1};
};

template <WeightType kType>
void linear_of(const GroupedLinearParams& p, GroupedTile tile, const Launch& launch) {
  using T = std::conditional_t<has_scales(kType), std::conditional_t<is_int8(kType), int8_t, fp8_e4m3>, bf16>;
  constexpr GemmScales kScales = is_channel_scaled(kType) ? GemmScales::kChannels
                                 : has_scales(kType)      ? GemmScales::kBlocks
                                                          : GemmScales::kNone;
  using Tile256x128 = WgmmaGemmConfig<T, Shape256x128, kScales>;
  using Tile128x128 = WgmmaGemmConfig<T, Shape128x128, kScales>;
  using Tile128x256 = WgmmaGemmConfig<T, Shape128x256<T>, kScales>;
  using Tile64x256 = WgmmaGemmConfig<T, Shape64x256<T>, kScales>;
  static_assert(is<Tile256x128>(grouped_tile(GroupedTile::k256x128)) &&
                is<Tile128x128>(grouped_tile(GroupedTile::k128x128)) &&
                is<Tile128x256>(grouped_tile(GroupedTile::k128x256)) &&
                is<Tile64x256>(grouped_tile(GroupedTile::k64x256)));
  const auto operands = wgmma_operands<T>(p, p.expert_stride);
  WgmmaGemmParams params;
  params.y = static_cast<bf16*>(p.y);
  params.y_stride = p.w.n;
  params.rows = static_cast<int>(p.num_rows);
  params.n = static_cast<int>(p.w.n);
  params.w_scales = p.w.scales;
  params.w_scale_stride = p.w.scale_stride;
  params.expert_scale_stride = p.expert_scale_stride;
  params.expert_offsets = p.expert_offsets;
  params.num_experts = p.num_experts;
  switch (tile) {
    case GroupedTile::k256x128:
      return launch_wgmma_gemm<Tile256x128>(operands, params, launch);
    case GroupedTile::k128x128:
      return launch_wgmma_gemm<Tile128x128>(operands, params, launch);
    case GroupedTile::k128x256:
      return launch_wgmma_gemm<Tile128x256>(operands, params, launch);
    case GroupedTile::k64x256:
      return launch_wgmma_gemm<Tile64x256>(operands, params, launch);
  }
}

}  // namespace hadal::cuda::grouped_wgmma
