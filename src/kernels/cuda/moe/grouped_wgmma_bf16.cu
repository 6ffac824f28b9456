// bf16 grouped products on the tiled kernel of gemm/wgmma_gemm.cuh.
#include "kernels/cuda/gemm/wgmma_gemm.cuh"
#include "kernels/cuda/moe/grouped_wgmma.h"

namespace hadal::cuda::grouped_wgmma {
namespace {

struct Shape256x128 {
  static constexpr WgmmaTile kTile{.waves = 2, .columns = 128, .stages = 4};
};
struct Shape128x128 {
  static constexpr WgmmaTile kTile{.waves = 1, .columns = 128, .stages = 6};
};
struct Shape128x256 {
  static constexpr WgmmaTile kTile{.waves = 2, .columns = 128, .stages = 4, .beside = true};
};
struct Shape64x256 {
  static constexpr WgmmaTile kTile{.waves = 1, .columns = 128, .stages = 5, .cluster = 1, .beside = true};
};
using Tile256x128 = WgmmaGemmConfig<bf16, Shape256x128>;
using Tile128x128 = WgmmaGemmConfig<bf16, Shape128x128>;
using Tile128x256 = WgmmaGemmConfig<bf16, Shape128x256>;
using Tile64x256 = WgmmaGemmConfig<bf16, Shape64x256>;
static_assert(is<Tile256x128>(grouped_tile(GroupedTile::k256x128)) &&
              is<Tile128x128>(grouped_tile(GroupedTile::k128x128)) &&
              is<Tile128x256>(grouped_tile(GroupedTile::k128x256)) &&
              is<Tile64x256>(grouped_tile(GroupedTile::k64x256)));

}  // namespace

void run_bf16(const GroupedLinearParams& p, GroupedTile tile, const Launch& launch) {
  WgmmaGemmOperands<bf16> operands;
  operands.x = p.x;
  operands.x_stride = p.x_stride;
  operands.w = static_cast<const bf16*>(p.w.data);
  operands.w_row_stride = p.w.row_stride;
  operands.expert_stride = p.expert_stride;
  operands.k = p.w.k;
  WgmmaGemmParams params;
  params.y = p.y;
  params.y_stride = p.w.n;
  params.rows = static_cast<int>(p.num_rows);
  params.n = static_cast<int>(p.w.n);
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
