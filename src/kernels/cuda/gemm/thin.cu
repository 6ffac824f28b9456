// linear for small matrices and a handful of rows (gemm/thin.cuh): argument checks, and the instantiations of
// bf16 and of FP8 with block scales.
#include "kernels/cuda/gemm/thin.cuh"

namespace hadal::cuda {

bool thin_linear_takes(const LinearParams& p) {
  if (p.m < 1 || p.m > kMaxThinRows || p.w.n < 1 || p.w.n > (1 << 20) || !aligned16(p.w.data)) return false;
  if (!thin::fits(p.w.type, thin::tile_of_tokens(p.m), blocks_of_k(p.w.type, p.w.k))) return false;
  if (has_scales(p.w.type)) {
    return sums_fit(p.w.type, p.w.k) && p.w.row_stride % 16 == 0 &&
           p.w.row_stride >= round_up(p.w.k, kQuantGroup) && aligned16(p.x_fp8.codes) &&
           p.x_fp8.stride % 16 == 0 && p.x_fp8.stride >= round_up(p.w.k, kQuantGroup);
  }
  return is_16_bit(p.w.type) && p.w.k % 8 == 0 && p.w.row_stride % 8 == 0 && aligned16(p.x) &&
         p.x_stride % 8 == 0;
}

void thin_linear(const LinearParams& p, const Launch& launch) {
  HADAL_CHECK(thin_linear_takes(p), "thin_linear does not take m {}, n {}, k {}", p.m, p.w.n, p.w.k);
  if (p.w.type == WeightType::kBF16) return thin::linear_of<WeightType::kBF16>(p, launch);
  if (p.w.type == WeightType::kF16) return thin::linear_f16(p, launch);
  if (p.w.type == WeightType::kFp8Block) return thin::linear_of<WeightType::kFp8Block>(p, launch);
  thin::linear_w8a8(p, launch);
}

}  // namespace hadal::cuda
