// Linears with 8-bit weights and many rows on the tiled kernel of wgmma_gemm.cuh: argument checks, and the
// instantiations by type.
#include "kernels/cuda/gemm/wgmma_linear.h"

#include "base/check.h"
#include "kernels/cuda/gemm/variants.h"

namespace hadal::cuda {

bool wgmma_linear_takes(const LinearParams& p) {
  const auto on_8_bytes = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 8 == 0; };
  const int64_t k = padded_k(p.w.type, p.w.k);
  // Scales and biases of channels are read in twos.
  const bool scales = is_channel_scaled(p.w.type) ? on_8_bytes(p.w.scales) && on_8_bytes(p.bias)
                                                  : p.x_fp8.scale_stride % 4 == 0;
  return has_scales(p.w.type) && sums_fit(p.w.type, p.w.k) && p.x_fp8 && p.y != nullptr &&
         p.y_f32 == nullptr && p.m >= 1 && p.w.n >= 8 && p.w.n % 8 == 0 && p.y_stride % 8 == 0 &&
         p.w.row_stride % 16 == 0 && p.w.row_stride >= k && p.x_fp8.stride % 16 == 0 && p.x_fp8.stride >= k &&
         on_16_bytes(p.y) && on_16_bytes(p.w.data) && on_16_bytes(p.x_fp8.codes) &&
         on_16_bytes(p.x_fp8.scales) && scales;
}

void wgmma_linear(const LinearParams& p, const Launch& launch) {
  wgmma_linear_with(choose_linear_tile(p.w.type, p.m, p.w.n, p.w.k, launch.num_sms), p, launch);
}

void wgmma_linear_with(LinearTile tile, const LinearParams& p, const Launch& launch,
                       const RestWorkspace& workspace) {
  HADAL_CHECK(wgmma_linear_takes(p), "m {}, n {}, k {}, y stride {}", p.m, p.w.n, p.w.k, p.y_stride);
  switch (p.w.type) {
    case WeightType::kFp8Block:
      return wgmma_linear_of::fp8_block(tile, p, launch, workspace);
    case WeightType::kFp8Channel:
      return wgmma_linear_of::fp8_channel(tile, p, launch, workspace);
    case WeightType::kInt8Block:
      return wgmma_linear_of::int8_block(tile, p, launch, workspace);
    case WeightType::kInt8Channel:
      return wgmma_linear_of::int8_channel(tile, p, launch, workspace);
    case WeightType::kF32:
    case WeightType::kBF16:
    case WeightType::kF16:
      break;
  }
}

}  // namespace hadal::cuda
