// The tiles of gemm/choice.h on the tiled kernel, for one type of weights.
#pragma once

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/gemm/wgmma_gemm.cuh"
#include "kernels/cuda/gemm/wgmma_linear.h"

namespace hadal::cuda::wgmma_linear_of {

struct Shape256x128 {
  static constexpr WgmmaTile kTile{
      .waves = 2, .columns = 128, .stages = 4, .order = WgmmaOrder::kLead, .copy_out = true};
};
struct Shape128x192 {
  static constexpr WgmmaTile kTile{.waves = 1, .columns = 192, .stages = 5};
};
struct Shape128x128 {
  static constexpr WgmmaTile kTile{.waves = 1, .columns = 128, .stages = 6, .order = WgmmaOrder::kAhead};
};
struct Shape128x64 {
  static constexpr WgmmaTile kTile{
      .waves = 1, .columns = 64, .stages = 7, .cluster = 1, .order = WgmmaOrder::kAhead};
};

template <class C>
constexpr bool is(LinearTile tile) {
  const LinearTileSize& size = kLinearTileSizes[static_cast<int>(tile)];
  return size.block_m == C::kBlockM && size.block_n == C::kBlockN && size.stages == C::kStages &&
         size.cluster == C::kCluster;
}

template <typename T, GemmScales kScales>
void run(LinearTile tile, const LinearParams& p, const Launch& launch) {
  using Tile256x128 = WgmmaGemmConfig<T, Shape256x128, kScales>;
  using Tile128x192 = WgmmaGemmConfig<T, Shape128x192, kScales>;
  using Tile128x128 = WgmmaGemmConfig<T, Shape128x128, kScales>;
  using Tile128x64 = WgmmaGemmConfig<T, Shape128x64, kScales>;
  static_assert(is<Tile256x128>(LinearTile::k256x128) && is<Tile128x192>(LinearTile::k128x192) &&
                    is<Tile128x128>(LinearTile::k128x128) && is<Tile128x64>(LinearTile::k128x64),
                "gemm/choice.h says otherwise");
  WgmmaGemmOperands<T> operands;
  operands.x = reinterpret_cast<const T*>(p.x_fp8.codes);
  operands.x_stride = p.x_fp8.stride;
  operands.x_scales = p.x_fp8.scales;
  operands.x_scale_stride = p.x_fp8.scale_stride;
  operands.w = static_cast<const T*>(p.w.data);
  operands.w_row_stride = p.w.row_stride;
  operands.expert_stride = p.w.row_stride * p.w.n;
  operands.k = padded_k(p.w.type, p.w.k);
  WgmmaGemmParams params;
  params.y = p.y;
  params.y_stride = p.y_stride;
  params.rows = static_cast<int>(p.m);
  params.n = static_cast<int>(p.w.n);
  params.w_scales = p.w.scales;
  params.w_scale_stride = p.w.scale_stride;
  params.bias = p.bias;
  switch (tile) {
    case LinearTile::k256x128:
      return launch_wgmma_gemm<Tile256x128>(operands, params, launch);
    case LinearTile::k128x192:
      return launch_wgmma_gemm<Tile128x192>(operands, params, launch);
    case LinearTile::k128x128:
      return launch_wgmma_gemm<Tile128x128>(operands, params, launch);
    case LinearTile::k128x64:
      return launch_wgmma_gemm<Tile128x64>(operands, params, launch);
  }
}

}  // namespace hadal::cuda::wgmma_linear_of
