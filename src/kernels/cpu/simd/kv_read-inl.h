// Converts records of the paged KV cache to rows of float32 in the current Highway target. Conversions are
// exact, so every target gives the bits of reference/kv_record.h.
#if defined(HADAL_KERNELS_CPU_SIMD_KV_READ_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HADAL_KERNELS_CPU_SIMD_KV_READ_INL_H_
#undef HADAL_KERNELS_CPU_SIMD_KV_READ_INL_H_
#else
#define HADAL_KERNELS_CPU_SIMD_KV_READ_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/params/kv_layout.h"

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using KvD = hn::ScalableTag<float>;
using KvV = hn::VFromD<KvD>;

// Each of these loads Lanes(d) values of one storage type and widens them.
struct LoadKvF32 {
  static constexpr int kBytes = 4;
  static HWY_INLINE KvV load(KvD d, const std::byte* p) {
    return hn::LoadU(d, reinterpret_cast<const float*>(p));
  }
};

struct LoadKvBf16 {
  static constexpr int kBytes = 2;
  static HWY_INLINE KvV load(KvD d, const std::byte* p) {
    const hn::Rebind<uint16_t, KvD> d16;
    const hn::RebindToUnsigned<KvD> d32;
    const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
  }
};

struct LoadKvF16 {
  static constexpr int kBytes = 2;
  static HWY_INLINE KvV load(KvD d, const std::byte* p) {
    const hn::Rebind<hwy::float16_t, KvD> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
  }
};

// Widens an fp8 code with kExponentBits and kMantissaBits: the code is shifted into float32's fields and its
// exponent is re-biased. A subnormal code gets the hidden bit of the lowest exponent, which is then
// subtracted, so that no float32 subnormal appears, which is slow on some cores.
template <int kExponentBits, int kMantissaBits>
HWY_INLINE KvV widen_fp8(KvD d, const std::byte* p) {
  const hn::Rebind<uint8_t, KvD> d8;
  const hn::RebindToUnsigned<KvD> du;
  constexpr int kShift = 23 - kMantissaBits;
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  const auto code = hn::PromoteTo(du, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(p)));
  const auto magnitude = hn::And(code, hn::Set(du, 0x7fU));
  const auto sign = hn::ShiftLeft<24>(hn::Xor(code, magnitude));
  const auto subnormal = hn::Lt(magnitude, hn::Set(du, 1U << kMantissaBits));
  const auto rebias = hn::Set(du, static_cast<uint32_t>(127 - kBias) << 23);
  const auto hidden = hn::Set(du, static_cast<uint32_t>(128 - kBias) << 23);
  const auto bits = hn::Add(hn::ShiftLeft<kShift>(magnitude), hn::IfThenElse(subnormal, hidden, rebias));
  const KvV hidden_value = hn::BitCast(d, hn::IfThenElseZero(subnormal, hidden));
  KvV value = hn::Sub(hn::BitCast(d, bits), hidden_value);
  if constexpr (kExponentBits == 4) {
    value = hn::IfThenElse(hn::RebindMask(d, hn::Eq(magnitude, hn::Set(du, 0x7fU))),
                           hn::BitCast(d, hn::Set(du, 0x7fc00000U)), value);
  } else {  // infinity and NaN: the top exponent becomes that of float32
    const auto special = hn::Or(hn::ShiftLeft<kShift>(magnitude), hn::Set(du, 0x7f800000U));
    value = hn::IfThenElse(hn::RebindMask(d, hn::Gt(magnitude, hn::Set(du, 0x7bU))), hn::BitCast(d, special),
                           value);
  }
  return hn::BitCast(d, hn::Or(hn::BitCast(du, value), sign));
}

struct LoadKvE4m3 {
  static constexpr int kBytes = 1;
  static HWY_INLINE KvV load(KvD d, const std::byte* p) { return widen_fp8<4, 3>(d, p); }
};

struct LoadKvE5m2 {
  static constexpr int kBytes = 1;
  static HWY_INLINE KvV load(KvD d, const std::byte* p) { return widen_fp8<5, 2>(d, p); }
};

template <class Load>
HWY_INLINE void widen_values(const std::byte* in, int count, float* HWY_RESTRICT out) {
  const KvD d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int i = 0; i < count; i += lanes) hn::StoreU(Load::load(d, in + i * Load::kBytes), d, out + i);
}

// Converts `count` consecutive records to rows [count, 576] of float32, dense.
inline HWY_ATTR void read_records(const std::byte* records, const KvLayout& layout, int count,
                                  float* HWY_RESTRICT rows) {
  const KvD d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const int row_bytes = layout.row_bytes();
  switch (layout.format) {
    case KvFormat::kF32:
      return widen_values<LoadKvF32>(records, count * kKvRowDim, rows);
    case KvFormat::kF16:
      return widen_values<LoadKvF16>(records, count * kKvRowDim, rows);
    case KvFormat::kBF16:
      return widen_values<LoadKvBf16>(records, count * kKvRowDim, rows);
    case KvFormat::kFp8E5M2:
      return widen_values<LoadKvE5m2>(records, count * kKvRowDim, rows);
    case KvFormat::kFp8E4M3:
      for (int row = 0; row < count; ++row, records += row_bytes, rows += kKvRowDim) {
        const auto* scales = reinterpret_cast<const float*>(records + kKvFp8ScaleOffset);
        for (int g = 0; g < kKvNumScales; ++g) {
          const KvV scale = hn::Set(d, scales[g]);
          for (int i = g * kKvScaleGroup; i < (g + 1) * kKvScaleGroup; i += lanes) {
            hn::StoreU(hn::Mul(LoadKvE4m3::load(d, records + i), scale), d, rows + i);
          }
        }
        widen_values<LoadKvBf16>(records + kKvFp8RopeOffset, kKvRopeDim, rows + kKvLatentDim);
      }
      return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace hadal::cpu::simd
HWY_AFTER_NAMESPACE();

#endif  // per target
