// bf16 grouped products on the tiled kernel of gemm/wgmma_gemm.cuh.
#include "kernels/cuda/gemm/wgmma_gemm.cuh"
#include "kernels/cuda/moe/grouped_wgmma.h"

namespace hadal::cuda::grouped_wgmma {
namespace {

using Tall = WgmmaGemmConfig<bf16, 2, 128, 4, 2, 1>;
using Square = WgmmaGemmConfig<bf16, 1, 128, 5, 2, 2>;
static_assert(grouped_wgmma::is<Tall>(grouped_tile(true)) && grouped_wgmma::is<Square>(grouped_tile(false)));

}  // namespace

void run_bf16(const GroupedLinearParams& p, bool tall, const Launch& launch) {
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
  if (tall)
    launch_wgmma_gemm<Tall>(operands, params, launch);
  else
    launch_wgmma_gemm<Square>(operands, params, launch);
}

}  // namespace hadal::cuda::grouped_wgmma
