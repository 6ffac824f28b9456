// Defines the tiles of gemm/choice.h as instantiations of the tiled kernel (gemm/tiled/kernel.cuh), for one
// type of weights.
#pragma once

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/gemm/tiled/linear.h"
#include "kernels/cuda/gemm/tiled/split.cuh"

namespace hadal::cuda::tiled {

struct Shape256x128 {
  static constexpr WgmmaTile kTile{.waves = 2,
                                   .columns = 128,
                                   .stages = 4,
                                   .order = WgmmaOrder::kTight,
                                   .copy_out = true,
                                   .hold = true,
                                   .early_w = true};
};
struct Shape128x192 {
  static constexpr WgmmaTile kTile{.waves = 1,
                                   .columns = 192,
                                   .stages = 5,
                                   .cluster = 1,
                                   .order = WgmmaOrder::kTight,
                                   .copy_out = true,
                                   .early_w = true};
};
struct Shape128x128 {
  static constexpr WgmmaTile kTile{.waves = 1,
                                   .columns = 128,
                                   .stages = 6,
                                   .order = WgmmaOrder::kAhead,
                                   .copy_out = true,
                                   .early_w = true};
};
struct Shape128x64 {
  static constexpr WgmmaTile kTile{.waves = 1,
                                   .columns = 64,
                                   .stages = 7,
                                   .cluster = 1,
                                   .order = WgmmaOrder::kAhead,
                                   .copy_out = true,
                                   .early_w = true};
};
template <int kSplits>
struct Split128x64 {
  static constexpr WgmmaTile kTile{
      .waves = 1, .columns = 64, .stages = 8, .cluster = 1, .splits = kSplits, .order = WgmmaOrder::kAhead};
};

// Defines the same tile with a shared last round. It is a separate instantiation, because the code for
// sharing makes rounds that are not shared 2 % slower.
template <class Shape>
struct Sharing {
  static constexpr WgmmaTile kTile = [] {
    WgmmaTile tile = Shape::kTile;
    tile.shares = true;
    return tile;
  }();
};

// Launches a tile's kernel. Split tiles and tiles with a shared last round have kernels of their own.
template <LinearTile kTile, class Shape, typename T, GemmScales kScales>
void launch_tile(const WgmmaGemmOperands<T>& operands, const WgmmaGemmParams& params, const Launch& launch) {
  using C = WgmmaGemmConfig<T, Shape, kScales>;
  constexpr LinearTileSize kSize = linear_tile_size(kTile);
  static_assert(kSize.block_m == C::kBlockM && kSize.block_n == C::kBlockN && kSize.stages == C::kStages &&
                    kSize.cluster == C::kCluster && kSize.splits == C::kSplits,
                "gemm/choice.h says otherwise");
  if constexpr (kSize.shares) {
    if (params.rest.cut.tiles > 0)
      return launch_wgmma_gemm<WgmmaGemmConfig<T, Sharing<Shape>, kScales>>(operands, params, launch);
  }
  if constexpr (C::kSplits > 1)
    launch_wgmma_split<C>(operands, params, launch);
  else
    launch_wgmma_gemm<C>(operands, params, launch);
}

template <WeightType kType>
void linear_of(LinearTile tile, const DenseLinearParams& p, const Launch& launch,
               const RestWorkspace& workspace) {
  using T = std::conditional_t<is_int8(kType), int8_t, fp8_e4m3>;
  constexpr GemmScales kScales = is_channel_scaled(kType) ? GemmScales::kChannels : GemmScales::kBlocks;
  const auto operands = wgmma_operands<T>(p, p.w.row_stride * p.w.n);
  WgmmaGemmParams params;
  params.y = static_cast<bf16*>(p.y);
  params.y_stride = p.y_stride;
  params.rows = static_cast<int>(p.m);
  params.n = static_cast<int>(p.w.n);
  params.w_scales = p.w.scales;
  params.w_scale_stride = p.w.scale_stride;
  params.bias = p.bias;
  if (workspace.blocks >= launch.num_sms) {
    params.rest.cut = linear_rest(tile, p.w.type, p.m, p.w.n, p.w.k, launch.num_sms);
    params.rest.sums = workspace.sums;
    params.rest.counts = workspace.counts;
  }
  switch (tile) {
    case LinearTile::k256x128:
      return launch_tile<LinearTile::k256x128, Shape256x128, T, kScales>(operands, params, launch);
    case LinearTile::k128x192:
      return launch_tile<LinearTile::k128x192, Shape128x192, T, kScales>(operands, params, launch);
    case LinearTile::k128x128:
      return launch_tile<LinearTile::k128x128, Shape128x128, T, kScales>(operands, params, launch);
    case LinearTile::k128x64:
      return launch_tile<LinearTile::k128x64, Shape128x64, T, kScales>(operands, params, launch);
    case LinearTile::k128x64By2:
      return launch_tile<LinearTile::k128x64By2, Split128x64<2>, T, kScales>(operands, params, launch);
    case LinearTile::k128x64By4:
      return launch_tile<LinearTile::k128x64By4, Split128x64<4>, T, kScales>(operands, params, launch);
  }
}

}  // namespace hadal::cuda::tiled
