// Computes silu(gate) · up on vectors by the operations of reference/silu.h in the same order, and so with
// the same bits.
//
// Include this inside Highway's foreach_target, like gemm_tile-inl.h.
#if defined(HADAL_KERNELS_CPU_SIMD_MLP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HADAL_KERNELS_CPU_SIMD_MLP_INL_H_
#undef HADAL_KERNELS_CPU_SIMD_MLP_INL_H_
#else
#define HADAL_KERNELS_CPU_SIMD_MLP_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/reference/silu.h"
#include "kernels/cpu/simd/gemm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd::HWY_NAMESPACE {

#if HWY_NATIVE_FMA

HWY_INLINE VF exp_lanes(VF x) {
  const DF df;
  const hn::RebindToSigned<DF> di;
  // With this operand order a NaN does not reach the integer conversion.
  x = hn::Min(hn::Max(x, hn::Set(df, kExpMin)), hn::Set(df, kExpMax));
  const VF n = hn::Round(hn::Mul(x, hn::Set(df, kExpLog2E)));
  VF r = hn::MulAdd(n, hn::Set(df, -kExpLn2High), x);
  r = hn::MulAdd(n, hn::Set(df, -kExpLn2Low), r);
  VF poly = hn::Set(df, kExpPoly[5]);
  for (int i = 4; i >= 0; --i) poly = hn::MulAdd(poly, r, hn::Set(df, kExpPoly[i]));
  const VF e = hn::Add(hn::MulAdd(poly, hn::Mul(r, r), r), hn::Set(df, 1.0F));
  const auto exponent = hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127));
  return hn::Mul(e, hn::BitCast(df, hn::ShiftLeft<23>(exponent)));
}

// Computes hidden[i] = silu(gate[i]) · up[i] for N lanes, with any alignment.
HWY_INLINE void silu_mul_lanes(const float* gate, const float* up, float* hidden) {
  const DF df;
  const VF g = hn::LoadU(df, gate);
  const VF silu = hn::Div(g, hn::Add(hn::Set(df, 1.0F), exp_lanes(hn::Neg(g))));
  // A NaN gate yields that NaN, whatever exp returned for it.
  const VF product = hn::Mul(silu, hn::LoadU(df, up));
  hn::StoreU(hn::IfThenElse(hn::Eq(g, g), product, g), df, hidden);
}

#else

HWY_INLINE void silu_mul_lanes(const float* gate, const float* up, float* hidden) {
  for (int i = 0; i < kLanes; ++i) hidden[i] = silu_mul(gate[i], up[i]);
}

#endif

}  // namespace hadal::cpu::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
