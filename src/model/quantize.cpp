#include "model/quantize.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/check.h"
#include "base/fp8_table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/quantize.cpp"
#include <hwy/foreach_target.h>  // compiles this file once for every SIMD target
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace hadal::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Loads a vector of float32 from values of a stored type. All loads are unaligned, because files may have any
// alignment.
struct LoadF32 {
  static constexpr int64_t kBytes = 4;
  template <class DF>
  static HWY_INLINE hn::Vec<DF> load(DF df, const uint8_t* src) {
    return hn::LoadU(df, reinterpret_cast<const float*>(src));
  }
};

template <class DF>
HWY_INLINE auto load_halves([[maybe_unused]] DF df,
                            const uint8_t* src) {  // 16-bit values, zero-extended to 32
  const hn::RebindToUnsigned<DF> du32;
  const hn::Rebind<uint16_t, DF> du16;
  return hn::PromoteTo(du32, hn::LoadU(du16, reinterpret_cast<const uint16_t*>(src)));
}

struct LoadBf16 {
  static constexpr int64_t kBytes = 2;
  template <class DF>
  static HWY_INLINE hn::Vec<DF> load(DF df, const uint8_t* src) {
    return hn::BitCast(df, hn::ShiftLeft<16>(load_halves(df, src)));
  }
};

// Converts binary16 by integer operations and one exact multiplication, because not every target has the
// conversion in hardware: exponent and mantissa are shifted into place and 2^112 corrects the bias, including
// subnormals.
struct LoadF16 {
  static constexpr int64_t kBytes = 2;
  template <class DF>
  static HWY_INLINE hn::Vec<DF> load(DF df, const uint8_t* src) {
    const hn::RebindToUnsigned<DF> du;
    const auto half = load_halves(df, src);
    const auto magnitude = hn::And(half, hn::Set(du, 0x7fffU));
    const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000U)));
    const auto shifted = hn::ShiftLeft<13>(magnitude);
    const auto finite = hn::BitCast(du, hn::Mul(hn::BitCast(df, shifted), hn::Set(df, 0x1p112F)));
    const auto special = hn::Or(shifted, hn::Set(du, 0x7f800000U));  // infinity, NaN
    const auto is_special =
        hn::Gt(hn::BitCast(hn::RebindToSigned<DF>(), magnitude), hn::Set(hn::RebindToSigned<DF>(), 0x7bff));
    const auto value = hn::IfThenElse(hn::RebindMask(du, is_special), special, finite);
    return hn::BitCast(df, hn::Or(value, sign));
  }
};

// Passes the vectors of the body to `sink`, then one padded vector for the tail.
template <class Loader, class Sink>
HWY_INLINE void for_each_vector(const std::byte* src, int64_t count, const Sink& sink) {
  const hn::ScalableTag<float> df;
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  const auto* bytes = reinterpret_cast<const uint8_t*>(src);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) sink(i, lanes, Loader::load(df, bytes + i * Loader::kBytes));
  if (i < count) {
    alignas(64) uint8_t padded[HWY_MAX_BYTES] = {};
    std::memcpy(padded, bytes + i * Loader::kBytes, static_cast<size_t>((count - i) * Loader::kBytes));
    sink(i, count - i, Loader::load(df, padded));
  }
}

template <class Loader>
HWY_INLINE void widen(const std::byte* src, int64_t count, float* dst) {
  const hn::ScalableTag<float> df;
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  for_each_vector<Loader>(src, count, [&](int64_t i, int64_t valid, auto v) {
    if (valid == lanes) {
      hn::StoreU(v, df, dst + i);
    } else {
      alignas(64) float tail[HWY_MAX_BYTES / sizeof(float)];
      hn::Store(v, df, tail);
      std::copy_n(tail, valid, dst + i);
    }
  });
}

template <class Loader>
HWY_INLINE void round_bf16(const std::byte* src, int64_t count, uint16_t* dst) {
  const hn::ScalableTag<float> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::Rebind<uint16_t, decltype(df)> du16;
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  for_each_vector<Loader>(src, count, [&](int64_t i, int64_t valid, auto v) {
    const auto bits = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1U));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffU))));
    const auto quiet = hn::ShiftRight<16>(hn::Or(bits, hn::Set(du, 0x400000U)));
    const auto is_nan = hn::RebindMask(
        du, hn::Gt(hn::BitCast(di, hn::And(bits, hn::Set(du, 0x7fffffffU))), hn::Set(di, 0x7f800000)));
    const auto half = hn::DemoteTo(du16, hn::BitCast(di, hn::IfThenElse(is_nan, quiet, rounded)));
    if (valid == lanes) {
      hn::StoreU(half, du16, dst + i);
    } else {
      alignas(64) uint16_t tail[HWY_MAX_BYTES / sizeof(uint16_t)];
      hn::Store(half, du16, tail);
      std::copy_n(tail, valid, dst + i);
    }
  });
}

// Magnitudes of at least 2^-6 are rounded by adding half a unit at bit 20. Smaller ones have the fixed step
// 2^-9, which is the last bit of numbers near 2^14, so one addition rounds them.
template <class DF>
HWY_INLINE auto e4m3_codes(DF df, hn::Vec<DF> v) {
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;
  const auto bits = hn::BitCast(du, v);
  const auto sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(du, 0x80U));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffU));
  const auto is_nan = hn::RebindMask(du, hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x7f800000)));
  const auto clamped = hn::Min(hn::BitCast(df, magnitude), hn::Set(df, kFp8E4m3Max));
  const auto cbits = hn::BitCast(du, clamped);
  const auto odd = hn::And(hn::ShiftRight<20>(cbits), hn::Set(du, 1U));
  const auto rounded = hn::ShiftRight<20>(hn::Add(cbits, hn::Add(odd, hn::Set(du, 0x7ffffU))));
  const auto normal = hn::Sub(rounded, hn::Set(du, (127U - 7U) << 3));
  const auto magic = hn::Set(df, 16384.0F);
  const auto subnormal = hn::Sub(hn::BitCast(du, hn::Add(clamped, magic)), hn::BitCast(du, magic));
  const auto is_small = hn::RebindMask(du, hn::Lt(clamped, hn::Set(df, 0x1p-6F)));
  auto code = hn::IfThenElse(is_small, subnormal, normal);
  code = hn::IfThenElse(is_nan, hn::Set(du, 0x7fU), code);
  return hn::BitCast(di, hn::Or(code, sign));
}

// Rounds v to nearest even, within ±127; NaN gives 0, because its scale is NaN already.
template <class DF>
HWY_INLINE auto int8_codes(DF df, hn::Vec<DF> v) {
  const auto number = hn::IfThenElseZero(hn::Eq(v, v), v);
  const auto limit = hn::Set(df, 127.0F);
  return hn::NearestInt(hn::Max(hn::Min(number, limit), hn::Neg(limit)));
}

// Returns the largest magnitude of a tile [num_rows, width] of rows `k` values apart, at least kMinBlockAmax.
// NaNs are skipped; *has_nan tells whether there are any.
template <class Loader>
HWY_INLINE float tile_amax(const std::byte* src, int64_t num_rows, int64_t k, int64_t width, bool* has_nan) {
  const hn::ScalableTag<float> df;
  auto amax = hn::Set(df, kMinBlockAmax);
  auto ordered = hn::Eq(amax, amax);
  for (int64_t row = 0; row < num_rows; ++row) {
    for_each_vector<Loader>(src + row * k * Loader::kBytes, width, [&](int64_t, int64_t, auto v) {
      amax = hn::Max(hn::Abs(v), amax);
      ordered = hn::And(ordered, hn::Eq(v, v));
    });
  }
  *has_nan = !hn::AllTrue(df, ordered);
  return hn::GetLane(hn::MaxOfLanes(df, amax));
}

// Computes the codes of a tile [num_rows, width] of rows `k` values apart: `multiplier` is 448 / amax or 127
// / amax.
template <class Loader, bool kInt8>
HWY_INLINE void tile_codes(const std::byte* src, int64_t num_rows, int64_t k, int64_t width, float multiplier,
                           uint8_t* codes) {
  const hn::ScalableTag<float> df;
  using Code = std::conditional_t<kInt8, int8_t, uint8_t>;
  const hn::Rebind<Code, decltype(df)> dcode;
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  const auto factor = hn::Set(df, multiplier);
  for (int64_t row = 0; row < num_rows; ++row) {
    auto* out = reinterpret_cast<Code*>(codes + row * k);
    for_each_vector<Loader>(src + row * k * Loader::kBytes, width, [&](int64_t i, int64_t valid, auto v) {
      const auto scaled = hn::Mul(v, factor);
      const auto code = [&] {
        if constexpr (kInt8) {
          return hn::DemoteTo(dcode, int8_codes(df, scaled));
        } else {
          return hn::DemoteTo(dcode, e4m3_codes(df, scaled));
        }
      }();
      if (valid == lanes) {
        hn::StoreU(code, dcode, out + i);
      } else {
        alignas(64) Code tail[HWY_MAX_BYTES];
        hn::Store(code, dcode, tail);
        std::copy_n(tail, valid, out + i);
      }
    });
  }
}

// There is one exported function per stored type and purpose, because dispatch tables cannot contain
// templates.
void widen_f32(const std::byte* src, int64_t count, float* dst) {
  widen<LoadF32>(src, count, dst);
}
void widen_f16(const std::byte* src, int64_t count, float* dst) {
  widen<LoadF16>(src, count, dst);
}
void widen_bf16(const std::byte* src, int64_t count, float* dst) {
  widen<LoadBf16>(src, count, dst);
}
void round_f32(const std::byte* src, int64_t count, uint16_t* dst) {
  round_bf16<LoadF32>(src, count, dst);
}
void round_f16(const std::byte* src, int64_t count, uint16_t* dst) {
  round_bf16<LoadF16>(src, count, dst);
}
float amax_f32(const std::byte* src, int64_t num_rows, int64_t k, int64_t width, bool* has_nan) {
  return tile_amax<LoadF32>(src, num_rows, k, width, has_nan);
}
void fp8_codes_f32(const std::byte* src, int64_t num_rows, int64_t k, int64_t width, float multiplier,
                   uint8_t* codes) {
  tile_codes<LoadF32, false>(src, num_rows, k, width, multiplier, codes);
}
void int8_codes_f32(const std::byte* src, int64_t num_rows, int64_t k, int64_t width, float multiplier,
                    uint8_t* codes) {
  tile_codes<LoadF32, true>(src, num_rows, k, width, multiplier, codes);
}
float amax_f16(const std::byte* src, int64_t num_rows, int64_t k, int64_t width, bool* has_nan) {
  return tile_amax<LoadF16>(src, num_rows, k, width, has_nan);
}
void fp8_codes_f16(const std::byte* src, int64_t num_rows, int64_t k, int64_t width, float multiplier,
                   uint8_t* codes) {
  tile_codes<LoadF16, false>(src, num_rows, k, width, multiplier, codes);
}
void int8_codes_f16(const std::byte* src, int64_t num_rows, int64_t k, int64_t width, float multiplier,
                    uint8_t* codes) {
  tile_codes<LoadF16, true>(src, num_rows, k, width, multiplier, codes);
}
float amax_bf16(const std::byte* src, int64_t num_rows, int64_t k, int64_t width, bool* has_nan) {
  return tile_amax<LoadBf16>(src, num_rows, k, width, has_nan);
}
void fp8_codes_bf16(const std::byte* src, int64_t num_rows, int64_t k, int64_t width, float multiplier,
                    uint8_t* codes) {
  tile_codes<LoadBf16, false>(src, num_rows, k, width, multiplier, codes);
}
void int8_codes_bf16(const std::byte* src, int64_t num_rows, int64_t k, int64_t width, float multiplier,
                     uint8_t* codes) {
  tile_codes<LoadBf16, true>(src, num_rows, k, width, multiplier, codes);
}

}  // namespace hadal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hadal {

HWY_EXPORT(widen_f32);
HWY_EXPORT(widen_f16);
HWY_EXPORT(widen_bf16);
HWY_EXPORT(round_f32);
HWY_EXPORT(round_f16);
HWY_EXPORT(amax_f32);
HWY_EXPORT(amax_f16);
HWY_EXPORT(amax_bf16);
HWY_EXPORT(fp8_codes_f32);
HWY_EXPORT(fp8_codes_f16);
HWY_EXPORT(fp8_codes_bf16);
HWY_EXPORT(int8_codes_f32);
HWY_EXPORT(int8_codes_f16);
HWY_EXPORT(int8_codes_bf16);

namespace {

constexpr int64_t kBlock = 128;
constexpr float kInt8Max = 127.0F;

float largest_code(WeightType type) {
  return is_int8(type) ? kInt8Max : kFp8E4m3Max;
}

// Returns the amax of a tile [num_rows, width] whose rows are k values apart.
float tile_amax(WeightType type, DType dtype, const std::byte* src, int64_t num_rows, int64_t k,
                int64_t width) {
  bool has_nan = false;
  float amax = 0.0F;
  switch (dtype) {
    case DType::kF32:
      amax = HWY_DYNAMIC_DISPATCH(amax_f32)(src, num_rows, k, width, &has_nan);
      break;
    case DType::kF16:
      amax = HWY_DYNAMIC_DISPATCH(amax_f16)(src, num_rows, k, width, &has_nan);
      break;
    case DType::kBF16:
      amax = HWY_DYNAMIC_DISPATCH(amax_bf16)(src, num_rows, k, width, &has_nan);
      break;
    default:
      HADAL_CHECK(false, "no conversion from {}", to_string(dtype));
  }
  return has_nan && is_int8(type) ? std::numeric_limits<float>::quiet_NaN() : amax;
}

void tile_codes(WeightType type, DType dtype, const std::byte* src, int64_t num_rows, int64_t k,
                int64_t width, float amax, std::byte* codes) {
  const float multiplier = largest_code(type) / amax;
  auto* out = reinterpret_cast<uint8_t*>(codes);
  switch (dtype) {
    case DType::kF32:
      return is_int8(type) ? HWY_DYNAMIC_DISPATCH(int8_codes_f32)(src, num_rows, k, width, multiplier, out)
                           : HWY_DYNAMIC_DISPATCH(fp8_codes_f32)(src, num_rows, k, width, multiplier, out);
    case DType::kF16:
      return is_int8(type) ? HWY_DYNAMIC_DISPATCH(int8_codes_f16)(src, num_rows, k, width, multiplier, out)
                           : HWY_DYNAMIC_DISPATCH(fp8_codes_f16)(src, num_rows, k, width, multiplier, out);
    case DType::kBF16:
      return is_int8(type) ? HWY_DYNAMIC_DISPATCH(int8_codes_bf16)(src, num_rows, k, width, multiplier, out)
                           : HWY_DYNAMIC_DISPATCH(fp8_codes_bf16)(src, num_rows, k, width, multiplier, out);
    default:
      HADAL_CHECK(false, "no conversion from {}", to_string(dtype));
  }
}

}  // namespace

void widen_to_f32(DType dtype, const std::byte* src, int64_t count, float* dst) {
  switch (dtype) {
    case DType::kF32:
      return HWY_DYNAMIC_DISPATCH(widen_f32)(src, count, dst);
    case DType::kF16:
      return HWY_DYNAMIC_DISPATCH(widen_f16)(src, count, dst);
    case DType::kBF16:
      return HWY_DYNAMIC_DISPATCH(widen_bf16)(src, count, dst);
    default:
      HADAL_CHECK(false, "no conversion from {}", to_string(dtype));
  }
}

void round_to_bf16(DType dtype, const std::byte* src, int64_t count, bf16* dst) {
  auto* out = reinterpret_cast<uint16_t*>(dst);
  switch (dtype) {
    case DType::kF32:
      return HWY_DYNAMIC_DISPATCH(round_f32)(src, count, out);
    case DType::kF16:
      return HWY_DYNAMIC_DISPATCH(round_f16)(src, count, out);
    case DType::kBF16:
      std::memcpy(dst, src, static_cast<size_t>(count) * sizeof(bf16));
      return;
    default:
      HADAL_CHECK(false, "no conversion from {}", to_string(dtype));
  }
}

void quantize_rows(WeightType type, DType dtype, const std::byte* src, int64_t num_rows, int64_t k,
                   std::byte* codes, float* scales) {
  const int64_t element_bytes = dtype_bytes(dtype);
  if (is_block_scaled(type)) {
    HADAL_CHECK_LE(num_rows, kBlock);
    for (int64_t column = 0; column < k; column += kBlock) {
      const std::byte* tile = src + column * element_bytes;
      const int64_t width = std::min(kBlock, k - column);
      const float amax = tile_amax(type, dtype, tile, num_rows, k, width);
      scales[column / kBlock] = scale_of(type, amax);
      tile_codes(type, dtype, tile, num_rows, k, width, amax, codes + column);
    }
    return;
  }
  HADAL_CHECK(is_channel_scaled(type), "the type must have scales");
  for (int64_t row = 0; row < num_rows; ++row) {
    const std::byte* values = src + row * k * element_bytes;
    const float amax = tile_amax(type, dtype, values, 1, k, k);
    scales[row] = scale_of(type, amax);
    tile_codes(type, dtype, values, 1, k, k, amax, codes + row * k);
  }
}

float max_abs(WeightType type, DType dtype, const std::byte* src, int64_t count) {
  return tile_amax(type, dtype, src, 1, count, count);
}

float scale_of(WeightType type, float amax) {
  return amax / largest_code(type);
}

void quantize_values(WeightType type, DType dtype, const std::byte* src, int64_t count, float amax,
                     std::byte* codes) {
  tile_codes(type, dtype, src, 1, count, count, amax, codes);
}

void dequantize_rows(WeightType type, const std::byte* codes, int64_t num_rows, int64_t k,
                     const float* scales, float* out) {
  const std::array<float, 256>& e4m3 = e4m3_values();
  const bool blocks = is_block_scaled(type);
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t column = 0; column < k; column += blocks ? kBlock : k) {
      const float scale = scales[blocks ? column / kBlock : row];
      const int64_t end = blocks ? std::min(k, column + kBlock) : k;
      for (int64_t i = row * k + column; i < row * k + end; ++i) {
        const auto code = static_cast<uint8_t>(codes[i]);
        out[i] = (is_int8(type) ? static_cast<float>(static_cast<int8_t>(code)) : e4m3[code]) * scale;
      }
    }
  }
}

}  // namespace hadal
#endif  // HWY_ONCE
