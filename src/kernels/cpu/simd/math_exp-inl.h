// Computes 2^t for t ≤ 0 in the current Highway target, for the weights of online softmax. The relative error
// is below 2e-7 (range reduction to |f| ≤ 1/2, polynomial of degree 6 whose own error is 2e-8). Below 2^-126
// the result is 0, and NaN stays NaN. Every target with FMA computes the same bits.
#if defined(HADAL_KERNELS_CPU_SIMD_MATH_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HADAL_KERNELS_CPU_SIMD_MATH_EXP_INL_H_
#undef HADAL_KERNELS_CPU_SIMD_MATH_EXP_INL_H_
#else
#define HADAL_KERNELS_CPU_SIMD_MATH_EXP_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D, class V = hn::VFromD<D>>
HWY_INLINE V exp2_nonpositive(D d, V t) {
  const hn::RebindToSigned<D> di;
  // −inf must not reach the integer conversion. With this operand order, x86's max returns NaN for NaN.
  const V clamped = hn::Max(hn::Set(d, -127.0F), t);
  const V whole = hn::Round(clamped);
  const V f = hn::Sub(clamped, whole);
  V poly = hn::Set(d, 1.5461444854736328e-4F);
  poly = hn::MulAdd(poly, f, hn::Set(d, 1.3400427997112274e-3F));
  poly = hn::MulAdd(poly, f, hn::Set(d, 9.618056938052177e-3F));
  poly = hn::MulAdd(poly, f, hn::Set(d, 5.550327152013779e-2F));
  poly = hn::MulAdd(poly, f, hn::Set(d, 2.4022650718688965e-1F));
  poly = hn::MulAdd(poly, f, hn::Set(d, 6.931471824645996e-1F));
  poly = hn::MulAdd(poly, f, hn::Set(d, 1.0F));
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(di, whole));
  const V power = hn::BitCast(d, hn::Add(hn::BitCast(di, poly), exponent));
  return hn::IfThenZeroElse(hn::Lt(t, hn::Set(d, -126.0F)), power);
}

}  // namespace HWY_NAMESPACE
}  // namespace hadal::cpu::simd
HWY_AFTER_NAMESPACE();

#endif  // per target
