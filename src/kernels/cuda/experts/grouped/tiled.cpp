// Grouped products on the tiled kernel of gemm/tiled/kernel.cuh, whose tile scheduler reads the experts' rows
// on the device: which shapes it takes, and the instantiations by type.
#include "kernels/cuda/experts/grouped/tiled.h"

#include "base/check.h"
#include "kernels/cuda/alignment.h"
#include "kernels/cuda/experts/variants.h"

namespace hadal::cuda {

bool wgmma_grouped_linear_takes(const GroupedLinearParams& p) {
  if (p.token_of != nullptr || p.num_rows < 1 || p.num_experts < 1 || p.num_experts > kMaxTiledExperts ||
      p.w.n < 8 || p.w.n % 8 != 0 || !on_16_bytes(p.y) || !on_16_bytes(p.w.data))
    return false;
  if (p.w.type == WeightType::kBF16) {
    return p.x != nullptr && on_16_bytes(p.x) && p.x_stride % 8 == 0 && p.w.row_stride % 8 == 0 &&
           p.expert_stride % 8 == 0;
  }
  if (!has_scales(p.w.type) || !sums_fit(p.w.type, p.w.k)) return false;
  const int64_t k = padded_k(p.w.type, p.w.k);
  // Scales of channels are read in twos.
  const bool scales = is_channel_scaled(p.w.type)
                          ? reinterpret_cast<uintptr_t>(p.w.scales) % 8 == 0 && p.expert_scale_stride % 2 == 0
                          : p.x_quantized.scale_stride % 4 == 0;
  return p.x_quantized && on_16_bytes(p.x_quantized.codes) && on_16_bytes(p.x_quantized.scales) &&
         p.x_quantized.stride % 16 == 0 && p.x_quantized.stride >= k && p.w.row_stride % 16 == 0 &&
         p.w.row_stride >= k && p.expert_stride % 16 == 0 && scales;
}

void wgmma_grouped_linear(const GroupedLinearParams& p, const Launch& launch) {
  wgmma_grouped_linear(p, launch, choose_grouped_tile(grouped_shape(p, launch.num_sms)));
}

void wgmma_grouped_linear(const GroupedLinearParams& p, const Launch& launch, GroupedTile tile) {
  HADAL_CHECK(wgmma_grouped_linear_takes(p), "rows {}, experts {}, n {}, k {}", p.num_rows, p.num_experts,
              p.w.n, p.w.k);
  switch (p.w.type) {
    case WeightType::kBF16:
      return grouped_wgmma::run_bf16(p, tile, launch);
    case WeightType::kFp8Block:
      return grouped_wgmma::run_fp8_block(p, tile, launch);
    case WeightType::kFp8Channel:
      return grouped_wgmma::run_fp8_channel(p, tile, launch);
    case WeightType::kInt8Block:
      return grouped_wgmma::run_int8_block(p, tile, launch);
    case WeightType::kInt8Channel:
      return grouped_wgmma::run_int8_channel(p, tile, launch);
    case WeightType::kF16:
    case WeightType::kF32:
      break;
  }
}

}  // namespace hadal::cuda
