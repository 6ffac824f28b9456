// The tiles of gemm/choice.h on the tiled kernel, for one type of weights.
#pragma once

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/gemm/wgmma_linear.h"
#include "kernels/cuda/gemm/wgmma_split.cuh"

namespace hadal::cuda::wgmma_linear_of {

struct Shape256x128 {
  static constexpr WgmmaTile kTile{.waves = 2,
                                   .columns = 128,
                                   .stages = 4,
                                   .order = WgmmaOrder::kLead,
                                   .copy_out = true,
                                   .hold = true,
                                   .early_w = true};
};
struct Shape128x192 {
  static constexpr WgmmaTile kTile{
      .waves = 1, .columns = 192, .stages = 5, .cluster = 1, .copy_out = true, .early_w = true};
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

// Split tiles are another kernel.
template <LinearTile kTile, class C>
void launch_tile(const WgmmaGemmOperands<typename C::Element>& operands, const WgmmaGemmParams& params,
                 const Launch& launch) {
  constexpr LinearTileSize kSize = linear_tile_size(kTile);
  static_assert(kSize.block_m == C::kBlockM && kSize.block_n == C::kBlockN && kSize.stages == C::kStages &&
                    kSize.cluster == C::kCluster && kSize.splits == C::kSplits,
                "gemm/choice.h says otherwise");
  if constexpr (C::kSplits > 1)
    launch_wgmma_split<C>(operands, params, launch);
  else
    launch_wgmma_gemm<C>(operands, params, launch);
}

template <typename T, GemmScales kScales>
void run(LinearTile tile, const LinearParams& p, const Launch& launch) {
  const auto operands = wgmma_operands<T>(p, p.w.row_stride * p.w.n);
  WgmmaGemmParams params;
  params.y = static_cast<bf16*>(p.y);
  params.y_stride = p.y_stride;
  params.rows = static_cast<int>(p.m);
  params.n = static_cast<int>(p.w.n);
  params.w_scales = p.w.scales;
  params.w_scale_stride = p.w.scale_stride;
  params.bias = p.bias;
  switch (tile) {
    case LinearTile::k256x128:
      return launch_tile<LinearTile::k256x128, WgmmaGemmConfig<T, Shape256x128, kScales>>(operands, params,
                                                                                          launch);
    case LinearTile::k128x192:
      return launch_tile<LinearTile::k128x192, WgmmaGemmConfig<T, Shape128x192, kScales>>(operands, params,
                                                                                          launch);
    case LinearTile::k128x128:
      return launch_tile<LinearTile::k128x128, WgmmaGemmConfig<T, Shape128x128, kScales>>(operands, params,
                                                                                          launch);
    case LinearTile::k128x64:
      return launch_tile<LinearTile::k128x64, WgmmaGemmConfig<T, Shape128x64, kScales>>(operands, params,
                                                                                        launch);
    case LinearTile::k128x64By2:
      return launch_tile<LinearTile::k128x64By2, WgmmaGemmConfig<T, Split128x64<2>, kScales>>(operands,
                                                                                              params, launch);
    case LinearTile::k128x64By4:
      return launch_tile<LinearTile::k128x64By4, WgmmaGemmConfig<T, Split128x64<4>, kScales>>(operands,
                                                                                              params, launch);
  }
}

}  // namespace hadal::cuda::wgmma_linear_of
