// Grouped products on the tiled kernel of gemm/wgmma_gemm.cuh, whose tile scheduler reads the experts' rows
// on the device: which shapes it takes, and FP8.
#include "kernels/cuda/gemm/wgmma_gemm.cuh"
#include "kernels/cuda/moe/grouped_wgmma.h"
#include "kernels/cuda/moe/variants.h"

namespace hadal::cuda {
namespace {

using Tall = WgmmaGemmConfig<fp8_e4m3, 2, 128, 4, 2, 1>;
using Square = WgmmaGemmConfig<fp8_e4m3, 1, 128, 5, 2, 2>;
static_assert(grouped_wgmma::is<Tall>(grouped_tile(true)) && grouped_wgmma::is<Square>(grouped_tile(false)));

}  // namespace

bool wgmma_grouped_linear_takes(const GroupedLinearParams& p) {
  if (p.token_of != nullptr || p.num_rows < 1 || p.num_experts < 1 || p.num_experts > Tall::kMaxExperts ||
      p.w.n < 8 || p.w.n % 8 != 0 || !aligned16(p.y) || !aligned16(p.w.data))
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
  wgmma_grouped_linear(p, launch, tall_tiles(p.num_rows, p.num_experts, p.w.type));
}

void wgmma_grouped_linear(const GroupedLinearParams& p, const Launch& launch, bool tall) {
  HADAL_CHECK(wgmma_grouped_linear_takes(p), "rows {}, experts {}, n {}, k {}", p.num_rows, p.num_experts,
              p.w.n, p.w.k);
  if (p.w.type == WeightType::kBF16)
    grouped_wgmma::run_bf16(p, tall, launch);
  else
    grouped_wgmma::run_fp8(p, tall, launch);
}

void grouped_wgmma::run_fp8(const GroupedLinearParams& p, bool tall, const Launch& launch) {
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
  if (tall)
    launch_wgmma_gemm<Tall>(operands, params, launch);
  else
    launch_wgmma_gemm<Square>(operands, params, launch);
}

}  // namespace hadal::cuda
