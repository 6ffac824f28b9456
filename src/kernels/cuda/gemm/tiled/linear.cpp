// Linears with 8-bit weights and many rows on the tiled kernel of gemm/tiled/kernel.cuh: argument checks, and
// the instantiations by type.
#include "kernels/cuda/gemm/tiled/linear.h"

#include "base/check.h"
#include "kernels/cuda/alignment.h"
#include "kernels/cuda/gemm/variants.h"

namespace hadal::cuda {

bool wgmma_linear_takes(const LinearParams& p) {
  const int64_t k = padded_k(p.w.type, p.w.k);
  // Scales and biases of channels are read in twos.
  const bool scales = is_channel_scaled(p.w.type) ? on_8_bytes(p.w.scales) && on_8_bytes(p.bias)
                                                  : p.x_quantized.scale_stride % 4 == 0;
  return has_scales(p.w.type) && sums_fit(p.w.type, p.w.k) && p.x_quantized && p.y != nullptr &&
         p.y_f32 == nullptr && p.m >= 1 && p.w.n >= 8 && p.w.n % 8 == 0 && p.y_stride % 8 == 0 &&
         p.w.row_stride % 16 == 0 && p.w.row_stride >= k && p.x_quantized.stride % 16 == 0 &&
         p.x_quantized.stride >= k && on_16_bytes(p.y) && on_16_bytes(p.w.data) &&
         on_16_bytes(p.x_quantized.codes) && on_16_bytes(p.x_quantized.scales) && scales;
}

void wgmma_linear(const LinearParams& p, const Launch& launch) {
  wgmma_linear_with(choose_linear_tile(p.w.type, p.m, p.w.n, p.w.k, launch.num_sms), p, launch);
}

void wgmma_linear_with(LinearTile tile, const LinearParams& p, const Launch& launch,
                       const RestWorkspace& workspace) {
  HADAL_CHECK(wgmma_linear_takes(p), "m {}, n {}, k {}, y stride {}", p.m, p.w.n, p.w.k, p.y_stride);
  switch (p.w.type) {
    case WeightType::kFp8Block:
      return tiled::linear_of<WeightType::kFp8Block>(tile, p, launch, workspace);
    case WeightType::kFp8Channel:
      return tiled::linear_of<WeightType::kFp8Channel>(tile, p, launch, workspace);
    case WeightType::kInt8Block:
      return tiled::linear_of<WeightType::kInt8Block>(tile, p, launch, workspace);
    case WeightType::kInt8Channel:
      return tiled::linear_of<WeightType::kInt8Channel>(tile, p, launch, workspace);
    case WeightType::kF32:
    case WeightType::kBF16:
    case WeightType::kF16:
      break;
  }
}

}  // namespace hadal::cuda
