// Writes KV records: float32 rows are rounded to the cache's format. Every format is rounded in integer
// arithmetic, so that all targets agree bit for bit with reference/kv_record.h.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/float_types.h"
#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/kv_write.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd/round-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::VFromD<D>;
using DU = hn::RebindToUnsigned<D>;
using DI = hn::RebindToSigned<D>;

HWY_INLINE hn::VFromD<DU> round_bf16(V value) {
  const DU du;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1U));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7fffU)), odd));
  const auto nan = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40U));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), nan, rounded);
}

HWY_INLINE void store_u16(hn::VFromD<DU> bits, std::byte* out) {
  const hn::Rebind<uint16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(DI(), bits)), d16, reinterpret_cast<uint16_t*>(out));
}

struct StoreF16 {
  static constexpr int kBytes = 2;
  static HWY_INLINE void store(V v, std::byte* out) {
    store_u16(round_bits<5, 10>(D(), v, 65536.0F, 0x7e00U), out);  // 2^16 becomes infinity
  }
};

struct StoreBf16 {
  static constexpr int kBytes = 2;
  static HWY_INLINE void store(V v, std::byte* out) { store_u16(round_bf16(v), out); }
};

struct StoreE5m2 {
  static constexpr int kBytes = 1;
  static HWY_INLINE void store(V v, std::byte* out) {
    store_u8(D(), round_bits<5, 2>(D(), v, kFp8E5m2Max, 0x7fU), out);
  }
};

template <class Store>
HWY_INLINE void narrow_values(const float* values, int count, std::byte* out) {
  const D d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int i = 0; i < count; i += lanes) Store::store(hn::LoadU(d, values + i), out + i * Store::kBytes);
}

template <class Store>
HWY_INLINE void write_plain(const float* latent, const float* rope, std::byte* out) {
  narrow_values<Store>(latent, kKvLatentDim, out);
  narrow_values<Store>(rope, kKvRopeDim, out + kKvLatentDim * Store::kBytes);
}

HWY_INLINE float group_amax(const float* latent, int count) {
  const D d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const V zero = hn::Zero(d);
  V amax = zero;
  for (int i = 0; i < count; i += lanes) {
    const V v = hn::Abs(hn::LoadU(d, latent + i));
    amax = hn::Max(amax, hn::IfThenElse(hn::IsNaN(v), zero, v));
  }
  return hn::GetLane(hn::MaxOfLanes(d, amax));
}

HWY_INLINE float scale_of(float amax, KvScales scales) {
  if (scales == KvScales::kPer128PowersOfTwo) return power_of_two_scale(amax);
  const float scale = amax / kFp8E4m3Max;
  return scale > 0.0F ? scale : 1.0F;
}

HWY_INLINE void write_e4m3(const float* latent, const float* rope, KvScales scales, std::byte* out) {
  const D d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  float amax[kKvNumScales];
  for (int g = 0; g < kKvNumScales; ++g) amax[g] = group_amax(latent + g * kKvScaleGroup, kKvScaleGroup);
  if (scales == KvScales::kPerToken)
    std::fill_n(amax, kKvNumScales, *std::max_element(amax, amax + kKvNumScales));
  for (int g = 0; g < kKvNumScales; ++g) {
    const float scale = scale_of(amax[g], scales);
    std::memcpy(out + kKvFp8ScaleOffset + g * sizeof(scale), &scale, sizeof(scale));
    const V divisor = hn::Set(d, scale);
    for (int i = g * kKvScaleGroup; i < (g + 1) * kKvScaleGroup; i += lanes) {
      const V code = hn::Div(hn::LoadU(d, latent + i), divisor);
      store_u8(d, round_bits<4, 3>(d, code, kFp8E4m3Max, 0x7fU), out + i);
    }
  }
  narrow_values<StoreBf16>(rope, kKvRopeDim, out + kKvFp8RopeOffset);
}

void write_one(const float* latent, const float* rope, const KvLayout& layout, std::byte* out) {
  switch (layout.format) {
    case KvFormat::kF32:
      std::memcpy(out, latent, kKvLatentDim * sizeof(float));
      std::memcpy(out + kKvLatentDim * sizeof(float), rope, kKvRopeDim * sizeof(float));
      return;
    case KvFormat::kF16:
      return write_plain<StoreF16>(latent, rope, out);
    case KvFormat::kBF16:
      return write_plain<StoreBf16>(latent, rope, out);
    case KvFormat::kFp8E5M2:
      return write_plain<StoreE5m2>(latent, rope, out);
    case KvFormat::kFp8E4M3:
      return write_e4m3(latent, rope, layout.scales, out);
  }
}

void write_rows(const KvWriteParams& p, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    write_one(p.latent + i * p.latent_stride, p.k_rope + i * p.k_rope_stride, p.layout,
              p.pool + p.slots[i] * p.layout.row_bytes());
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace hadal::cpu::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hadal::cpu::simd {

HWY_EXPORT(write_rows);

void kv_write(const KvWriteParams& p, Context& ctx) {
  constexpr int64_t kGrain = 64;  // about 10 µs of work: below that a fork-join costs more than it saves
  ctx.pool.parallel_for(p.m, kGrain, [&](int64_t begin, int64_t end, int /*thread_idx*/) {
    HWY_DYNAMIC_DISPATCH(write_rows)(p, begin, end);
  });
}

}  // namespace hadal::cpu::simd
#endif  // HWY_ONCE
