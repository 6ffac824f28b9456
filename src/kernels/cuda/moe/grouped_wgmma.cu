// Grouped products on the tiled kernel of gemm/wgmma_gemm.cuh, whose tile scheduler reads the experts' rows
// on the device: which shapes it takes, and FP8.
#include "kernels/cuda/gemm/wgmma_gemm.cuh"
#include "kernels/cuda/moe/grouped_wgmma.h"
#include "kernels/cuda/moe/variants.h"

namespace hadal::cuda {
namespace {

struct Shape256x128 {
  static constexpr WgmmaTile kTile{.waves = 2, .columns = 128, .stages = 4, .order = WgmmaOrder::kLead};
};
struct Shape128x128 {
  static constexpr WgmmaTile kTile{.waves = 1, .columns = 128, .stages = 6, .order = WgmmaOrder::kAhead};
};
struct Shape128x256 {
  static constexpr WgmmaTile kTile{
      .waves = 2, .columns = 128, .stages = 4, .order = WgmmaOrder::kLead, .beside = true, .stream_w = true};
};
struct Shape64x256 {
  static constexpr WgmmaTile kTile{.waves = 1,
                                   .columns = 128,
                                   .stages = 5,
                                   .cluster = 1,
                                   .order = WgmmaOrder::kAhead,
                                   .beside = true,
                                   .stream_w = true};
};
using Tile256x128 = WgmmaGemmConfig<fp8_e4m3, Shape256x128>;
using Tile128x128 = WgmmaGemmConfig<fp8_e4m3, Shape128x128>;
using Tile128x256 = WgmmaGemmConfig<fp8_e4m3, Shape128x256>;
using Tile64x256 = WgmmaGemmConfig<fp8_e4m3, Shape64x256>;
static_assert(grouped_wgmma::is<Tile256x128>(grouped_tile(GroupedTile::k256x128)) &&
              grouped_wgmma::is<Tile128x128>(grouped_tile(GroupedTile::k128x128)) &&
              grouped_wgmma::is<Tile128x256>(grouped_tile(GroupedTile::k128x256)) &&
              grouped_wgmma::is<Tile64x256>(grouped_tile(GroupedTile::k64x256)));

}  // namespace

bool wgmma_grouped_linear_takes(const GroupedLinearParams& p) {
  if (p.token_of != nullptr || p.num_rows < 1 || p.num_experts < 1 ||
      p.num_experts > Tile256x128::kMaxExperts || p.w.n < 8 || p.w.n % 8 != 0 || !aligned16(p.y) ||
      !aligned16(p.w.data))
    return false;
  switch (p.w.type) {
    case WeightType::kBF16:
      return p.x != nullptr && aligned16(p.x) && p.x_stride % 8 == 0 && p.w.row_stride % 8 == 0 &&
             p.expert_stride % 8 == 0;
    case WeightType::kFp8Block: {
      const int64_t padded_k = round_up(p.w.k, kQuantGroup);
      return p.x_fp8 && aligned16(p.x_fp8.codes) && aligned16(p.x_fp8.scales) && p.x_fp8.stride % 16 == 0 &&
             p.x_fp8.stride >= padded_k && p.x_fp8.scale_stride % 4 == 0 && p.w.row_stride % 16 == 0 &&
             p.w.row_stride >= padded_k && p.expert_stride % 16 == 0;
    }
    case WeightType::kF32:
    case WeightType::kInt8Block:
    case WeightType::kFp8Channel:
    case WeightType::kInt8Channel:
      break;
  }
  return false;
}

void wgmma_grouped_linear(const GroupedLinearParams& p, const Launch& launch) {
  wgmma_grouped_linear(p, launch, choose_grouped_tile(grouped_shape(p, launch.num_sms)));
}

void wgmma_grouped_linear(const GroupedLinearParams& p, const Launch& launch, GroupedTile tile) {
  HADAL_CHECK(wgmma_grouped_linear_takes(p), "rows {}, experts {}, n {}, k {}", p.num_rows, p.num_experts,
              p.w.n, p.w.k);
  if (p.w.type == WeightType::kBF16)
    grouped_wgmma::run_bf16(p, tile, launch);
  else
    grouped_wgmma::run_fp8(p, tile, launch);
}

void grouped_wgmma::run_fp8(const GroupedLinearParams& p, GroupedTile tile, const Launch& launch) {
  WgmmaGemmOperands<fp8_e4m3> operands;
  operands.x = p.x_fp8.codes;
  operands.x_stride = p.x_fp8.stride;
  operands.x_scales = p.x_fp8.scales;
  operands.x_scale_stride = p.x_fp8.scale_stride;
  operands.w = static_cast<const fp8_e4m3*>(p.w.data);
  operands.w_row_stride = p.w.row_stride;
  operands.expert_stride = p.expert_stride;
  operands.k = round_up(p.w.k, kQuantGroup);
  WgmmaGemmParams params;
  params.y = p.y;
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

}  // namespace hadal::cuda
