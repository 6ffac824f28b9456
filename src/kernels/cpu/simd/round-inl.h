// Rounds float32 to the codes of smaller IEEE-like floats in integer arithmetic in the current Highway
// target, so that all targets agree bit for bit with the scalar conversions of base/float_types.h.
#if defined(HADAL_KERNELS_CPU_SIMD_ROUND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HADAL_KERNELS_CPU_SIMD_ROUND_INL_H_
#undef HADAL_KERNELS_CPU_SIMD_ROUND_INL_H_
#else
#define HADAL_KERNELS_CPU_SIMD_ROUND_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/float_types.h"
#include "hwy/highway.h"
#include "kernels/params/kv_layout.h"

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Returns the codes of `value`, ties to even, after clamping to ±`largest`.
template <int kExponentBits, int kMantissaBits, class D, class V = hn::VFromD<D>>
HWY_INLINE hn::VFromD<hn::RebindToUnsigned<D>> round_bits(D d, V value, float largest, uint32_t nan_bits) {
  const hn::RebindToUnsigned<D> du;
  constexpr int kShift = 23 - kMantissaBits;
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  const V magnitude = hn::Min(hn::Abs(value), hn::Set(d, largest));
  const auto bits = hn::BitCast(du, magnitude);
  const auto odd = hn::And(hn::ShiftRight<kShift>(bits), hn::Set(du, 1U));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, (1U << (kShift - 1)) - 1U)), odd);
  const auto normal = hn::Sub(hn::ShiftRight<kShift>(rounded),
                              hn::Set(du, static_cast<uint32_t>(127 - kBias) << kMantissaBits));
  // Below the smallest normal number, adding a number whose last bit is the format's quantum rounds to that
  // quantum.
  const V magic = hn::BitCast(d, hn::Set(du, static_cast<uint32_t>(127 + 24 - kBias - kMantissaBits) << 23));
  const auto subnormal = hn::Sub(hn::BitCast(du, hn::Add(magnitude, magic)), hn::BitCast(du, magic));
  const V smallest_normal = hn::BitCast(d, hn::Set(du, static_cast<uint32_t>(128 - kBias) << 23));
  auto code = hn::IfThenElse(hn::RebindMask(du, hn::Lt(magnitude, smallest_normal)), subnormal, normal);
  code = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), hn::Set(du, nan_bits), code);
  const auto sign = hn::ShiftRight<31>(hn::BitCast(du, value));
  return hn::Or(code, hn::ShiftLeft<kExponentBits + kMantissaBits>(sign));
}

// Returns the power of two by which a group of values is divided before it is rounded to e4m3 (KvScales,
// KvIndex): the smallest power of two that is at least max(amax, kKvMinAmax) / 448.
HWY_INLINE float power_of_two_scale(float amax) {
  const auto bits = std::bit_cast<uint32_t>(std::max(amax, kKvMinAmax) / kFp8E4m3Max);
  return std::bit_cast<float>((bits + 0x7fffffU) & 0xff800000U);
}

// Stores the low byte of each lane.
template <class D>
HWY_INLINE void store_u8(D /*d*/, hn::VFromD<hn::RebindToUnsigned<D>> codes, std::byte* out) {
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint8_t, D> d8;
  hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di, codes)), d8, reinterpret_cast<uint8_t*>(out));
}

}  // namespace HWY_NAMESPACE
}  // namespace hadal::cpu::simd
HWY_AFTER_NAMESPACE();

#endif  // per target
