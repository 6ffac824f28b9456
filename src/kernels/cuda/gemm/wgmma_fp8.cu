// FP8 linears with many rows on the tiled kernel of wgmma_gemm.cuh.
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/gemm/variants.h"
#include "kernels/cuda/gemm/wgmma_fp8.h"
#include "kernels/cuda/gemm/wgmma_gemm.cuh"

namespace hadal::cuda {
namespace {

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
using Tile256x128 = WgmmaGemmConfig<fp8_e4m3, Shape256x128>;
using Tile128x192 = WgmmaGemmConfig<fp8_e4m3, Shape128x192>;
using Tile128x128 = WgmmaGemmConfig<fp8_e4m3, Shape128x128>;
using Tile128x64 = WgmmaGemmConfig<fp8_e4m3, Shape128x64>;

template <class C>
constexpr bool is(Fp8Tile tile) {
  const Fp8TileSize& size = kFp8TileSizes[static_cast<int>(tile)];
  return size.block_m == C::kBlockM && size.block_n == C::kBlockN && size.stages == C::kStages &&
         size.cluster == C::kCluster;
}
static_assert(is<Tile256x128>(Fp8Tile::k256x128) && is<Tile128x192>(Fp8Tile::k128x192) &&
                  is<Tile128x128>(Fp8Tile::k128x128) && is<Tile128x64>(Fp8Tile::k128x64),
              "gemm/choice.h says otherwise");

}  // namespace

bool wgmma_fp8_linear_takes(const LinearParams& p) {
  const int64_t padded_k = round_up(p.w.k, kQuantGroup);
  return p.w.type == WeightType::kFp8Block && p.x_fp8 && p.y != nullptr && p.y_f32 == nullptr && p.m >= 1 &&
         p.w.n >= 8 && p.w.n % 8 == 0 && p.y_stride % 8 == 0 && p.w.row_stride % 16 == 0 &&
         p.w.row_stride >= padded_k && p.x_fp8.stride % 16 == 0 && p.x_fp8.stride >= padded_k &&
         p.x_fp8.scale_stride % 4 == 0 && aligned16(p.y) && aligned16(p.w.data) && aligned16(p.x_fp8.codes) &&
         aligned16(p.x_fp8.scales);
}

void wgmma_fp8_linear(const LinearParams& p, const Launch& launch) {
  wgmma_fp8_linear_with(choose_fp8_tile(p.m, p.w.n, p.w.k, launch.num_sms), p, launch);
}

void wgmma_fp8_linear_with(Fp8Tile tile, const LinearParams& p, const Launch& launch) {
  HADAL_CHECK(wgmma_fp8_linear_takes(p), "m {}, n {}, k {}, y stride {}", p.m, p.w.n, p.w.k, p.y_stride);
  WgmmaGemmOperands<fp8_e4m3> operands;
  operands.x = p.x_fp8.codes;
  operands.x_stride = p.x_fp8.stride;
  operands.x_scales = p.x_fp8.scales;
  operands.x_scale_stride = p.x_fp8.scale_stride;
  operands.w = static_cast<const fp8_e4m3*>(p.w.data);
  operands.w_row_stride = p.w.row_stride;
  operands.expert_stride = p.w.row_stride * p.w.n;
  operands.k = round_up(p.w.k, kQuantGroup);
  WgmmaGemmParams params;
  params.y = p.y;
  params.y_stride = p.y_stride;
  params.rows = static_cast<int>(p.m);
  params.n = static_cast<int>(p.w.n);
  params.w_scales = p.w.scales;
  params.w_scale_stride = p.w.scale_stride;
  switch (tile) {
    case Fp8Tile::k256x128:
      return launch_wgmma_gemm<Tile256x128>(operands, params, launch);
    case Fp8Tile::k128x192:
      return launch_wgmma_gemm<Tile128x192>(operands, params, launch);
    case Fp8Tile::k128x128:
      return launch_wgmma_gemm<Tile128x128>(operands, params, launch);
    case Fp8Tile::k128x64:
      return launch_wgmma_gemm<Tile128x64>(operands, params, launch);
  }
}

}  // namespace hadal::cuda
