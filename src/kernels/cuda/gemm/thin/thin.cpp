// linear for small matrices and a handful of rows (gemm/thin/kernel.cuh): argument checks, and the choice
// among the instantiations.
#include "kernels/cuda/gemm/thin/thin.h"

#include "base/check.h"
#include "kernels/cuda/alignment.h"
#include "kernels/cuda/gemm/variants.h"

namespace hadal::cuda {

bool thin_linear_takes(const LinearParams& p) {
  if (p.m < 1 || p.m > kMaxThinRows || p.w.n < 1 || p.w.n > (1 << 20) || !on_16_bytes(p.w.data)) return false;
  if (!thin::fits(p.w.type, thin::tile_of_tokens(p.m), blocks_of_k(p.w.type, p.w.k))) return false;
  if (has_scales(p.w.type)) {
    return sums_fit(p.w.type, p.w.k) && p.w.row_stride % 16 == 0 &&
           p.w.row_stride >= round_up(p.w.k, kQuantGroup) && on_16_bytes(p.x_quantized.codes) &&
           p.x_quantized.stride % 16 == 0 && p.x_quantized.stride >= round_up(p.w.k, kQuantGroup);
  }
  return is_16_bit(p.w.type) && p.w.k % 8 == 0 && p.w.row_stride % 8 == 0 && on_16_bytes(p.x) &&
         p.x_stride % 8 == 0;
}

void thin_linear(const LinearParams& p, const Launch& launch) {
  HADAL_CHECK(thin_linear_takes(p), "thin_linear does not take m {}, n {}, k {}", p.m, p.w.n, p.w.k);
  switch (p.w.type) {
    case WeightType::kBF16:
      return thin::linear_of<WeightType::kBF16>(p, launch);
    case WeightType::kF16:
      return thin::linear_of<WeightType::kF16>(p, launch);
    case WeightType::kFp8Block:
      return thin::linear_of<WeightType::kFp8Block>(p, launch);
    case WeightType::kFp8Channel:
      return thin::linear_of<WeightType::kFp8Channel>(p, launch);
    case WeightType::kInt8Block:
      return thin::linear_of<WeightType::kInt8Block>(p, launch);
    case WeightType::kInt8Channel:
      return thin::linear_of<WeightType::kInt8Channel>(p, launch);
    case WeightType::kF32:
      break;
  }
}

}  // namespace hadal::cuda
