// Turns stored weights into float32 vectors whose lanes run over rows: a block of N rows × 16 or 32 bytes is
// transposed in registers as 32-bit words, and each word is widened to the 1, 2 or 4 weights it contains. The
// conversion is exact, supports any alignment, and reads nothing beyond the rows' own bytes.
//
// Include this inside Highway's foreach_target, like gemm_tile-inl.h.
#if defined(HADAL_KERNELS_CPU_SIMD_UNPACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HADAL_KERNELS_CPU_SIMD_UNPACK_INL_H_
#undef HADAL_KERNELS_CPU_SIMD_UNPACK_INL_H_
#else
#define HADAL_KERNELS_CPU_SIMD_UNPACK_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/simd/gemm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd::HWY_NAMESPACE {

using DU32 = hn::ScalableTag<uint32_t>;
using VU32 = hn::Vec<DU32>;

#if HWY_NATIVE_FMA

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
#define HADAL_UNPACK_AVX512 1
inline constexpr int kBlockWords = 8;
#else
#define HADAL_UNPACK_AVX512 0
inline constexpr int kBlockWords = 4;
#endif
#if HWY_TARGET == HWY_AVX3_DL
#define HADAL_UNPACK_VBMI 1
#else
#define HADAL_UNPACK_VBMI 0
#endif
inline constexpr int kBlockBytes = kBlockWords * 4;  // bytes of each row

// In each 128-bit lane, transposes four rows of four 32-bit words: afterwards r[p] has word p of every row.
HWY_INLINE void transpose_in_lanes(VU32 (&r)[4]) {
  const DU32 du;
  const hn::Repartition<uint64_t, DU32> du64;
  const auto lo01 = hn::BitCast(du64, hn::InterleaveLower(du, r[0], r[1]));
  const auto hi01 = hn::BitCast(du64, hn::InterleaveUpper(du, r[0], r[1]));
  const auto lo23 = hn::BitCast(du64, hn::InterleaveLower(du, r[2], r[3]));
  const auto hi23 = hn::BitCast(du64, hn::InterleaveUpper(du, r[2], r[3]));
  r[0] = hn::BitCast(du, hn::InterleaveLower(du64, lo01, lo23));
  r[1] = hn::BitCast(du, hn::InterleaveUpper(du64, lo01, lo23));
  r[2] = hn::BitCast(du, hn::InterleaveLower(du64, hi01, hi23));
  r[3] = hn::BitCast(du, hn::InterleaveUpper(du64, hi01, hi23));
}

// Loads 32-bit word p of row n into lane n of words[p]; rows are `stride` bytes apart.
HWY_INLINE void load_transposed(const uint8_t* HWY_RESTRICT rows, int64_t stride,
                                VU32 (&words)[kBlockWords]) {
#if HADAL_UNPACK_AVX512
  // Halves of 256 bits are inserted from memory, which needs no shuffle, so three of the four shuffle stages
  // remain.
  const auto two_rows = [&](int low, int high) HWY_ATTR __attribute__((always_inline)) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows + low * stride));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows + high * stride));
    return VU32{_mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1)};
  };
  VU32 a[4] = {two_rows(0, 4), two_rows(1, 5), two_rows(2, 6), two_rows(3, 7)};
  transpose_in_lanes(a);
  VU32 b[4] = {two_rows(8, 12), two_rows(9, 13), two_rows(10, 14), two_rows(11, 15)};
  transpose_in_lanes(b);
  // Lanes of a[i] are: rows 0–3 word i, rows 0–3 word i + 4, rows 4–7 word i, rows 4–7 word i + 4.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    words[i] = VU32{_mm512_shuffle_i32x4(a[i].raw, b[i].raw, 0x88)};
    words[i + 4] = VU32{_mm512_shuffle_i32x4(a[i].raw, b[i].raw, 0xdd)};
  }
#elif HWY_TARGET == HWY_AVX2
  const DU32 du;
  const hn::Half<DU32> dh;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const auto low = hn::LoadU(dh, reinterpret_cast<const uint32_t*>(rows + i * stride));
    const auto high = hn::LoadU(dh, reinterpret_cast<const uint32_t*>(rows + (i + 4) * stride));
    words[i] = hn::Combine(du, high, low);
  }
  transpose_in_lanes(words);
#else
  const DU32 du;
  static_assert(kLanes == 4, "a vector must hold four words of one row");
  for (int i = 0; i < 4; ++i) words[i] = hn::LoadU(du, reinterpret_cast<const uint32_t*>(rows + i * stride));
  transpose_in_lanes(words);
#endif
}

#if HADAL_UNPACK_AVX512
inline constexpr int kLineWords = 16;

// Loads 32-bit word p of the 64 bytes at rows + n · stride into lane n of words[p]. `valid` marks the bytes
// that may be read (the others give zeros); ~0 allows all of them.
template <bool kMasked>
HWY_INLINE void load_lines_transposed(const uint8_t* HWY_RESTRICT rows, int64_t stride, uint64_t valid,
                                      VU32 (&words)[kLineWords]) {
  VU32 lanes[4][4];
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const uint8_t* row = rows + (4 * g + i) * stride;
      lanes[g][i] = VU32{kMasked ? _mm512_maskz_loadu_epi8(valid, row) : _mm512_loadu_si512(row)};
    }
    transpose_in_lanes(lanes[g]);
  }
  // 128-bit lanes of lanes[g][i] are words i, i + 4, i + 8, i + 12 of rows 4g … 4g + 3.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i even01 = _mm512_shuffle_i32x4(lanes[0][i].raw, lanes[1][i].raw, 0x88);
    const __m512i odd01 = _mm512_shuffle_i32x4(lanes[0][i].raw, lanes[1][i].raw, 0xdd);
    const __m512i even23 = _mm512_shuffle_i32x4(lanes[2][i].raw, lanes[3][i].raw, 0x88);
    const __m512i odd23 = _mm512_shuffle_i32x4(lanes[2][i].raw, lanes[3][i].raw, 0xdd);
    words[i] = VU32{_mm512_shuffle_i32x4(even01, even23, 0x88)};
    words[i + 4] = VU32{_mm512_shuffle_i32x4(odd01, odd23, 0x88)};
    words[i + 8] = VU32{_mm512_shuffle_i32x4(even01, even23, 0xdd)};
    words[i + 12] = VU32{_mm512_shuffle_i32x4(odd01, odd23, 0xdd)};
  }
}
#endif

// Each struct widens a 32-bit word to kPerWord weights in memory order.
struct UnpackF32 {
  static constexpr int kPerWord = 1;
  static HWY_INLINE void widen(VU32 word, VF (&out)[1]) { out[0] = hn::BitCast(DF(), word); }
};

struct UnpackBf16 {
  static constexpr int kPerWord = 2;
  static HWY_INLINE void widen(VU32 word, VF (&out)[2]) {
    out[0] = hn::BitCast(DF(), hn::ShiftLeft<16>(word));
    out[1] = hn::BitCast(DF(), hn::And(word, hn::Set(DU32(), 0xffff0000U)));
  }
};

#if HADAL_UNPACK_VBMI
// E4m3Tables has the bf16 values of all e4m3 codes without their signs, with high and low bytes in separate
// tables.
struct E4m3Tables {
  alignas(64) uint8_t high[128];
  alignas(64) uint8_t low[128];
  constexpr E4m3Tables() : high{}, low{} {
    for (int code = 0; code < 128; ++code) {
      int exponent = code >> 3;  // biased by 7
      int mantissa = code & 7;
      uint32_t bits = 0;  // bits of the bf16
      if (code == 127) {
        bits = 0x7fc0;  // NaN
      } else if (exponent > 0) {
        bits = static_cast<uint32_t>((exponent + 120) << 7 | mantissa << 4);
      } else if (mantissa > 0) {
        exponent = 121;
        for (; mantissa < 8; mantissa <<= 1) --exponent;
        bits = static_cast<uint32_t>(exponent << 7 | (mantissa & 7) << 4);
      }
      high[code] = static_cast<uint8_t>(bits >> 8);
      low[code] = static_cast<uint8_t>(bits & 0xff);
    }
  }
};
inline constexpr E4m3Tables kE4m3Tables{};
#endif

// Widens e4m3 through bf16, which represents every code exactly (subnormals become normal numbers). The high
// and the low byte of the bf16 are looked up for all codes of a vector at once and then combined.
struct UnpackE4m3 {
  static constexpr int kPerWord = 4;

#if HADAL_UNPACK_VBMI
  // Looks up the bytes of the bf16 values of 64 codes.
  static HWY_INLINE void look_up(VU32 codes, VU32& high, VU32& low) {
    const auto load = [](const uint8_t* p) HWY_ATTR { return _mm512_load_si512(p); };
    const __m512i h =
        _mm512_permutex2var_epi8(load(kE4m3Tables.high), codes.raw, load(kE4m3Tables.high + 64));
    const __m512i l = _mm512_permutex2var_epi8(load(kE4m3Tables.low), codes.raw, load(kE4m3Tables.low + 64));
    // This is h | (codes & 0x80).
    high = VU32{_mm512_ternarylogic_epi32(h, codes.raw, _mm512_set1_epi8(static_cast<char>(0x80)), 0xf8)};
    low = VU32{l};
  }
#else
  // Looks up the same bytes in 16-entry tables. For normal codes the high byte is 0x3c + exponent/2 (a
  // function of sign and upper exponent bits), and the low byte is the low four bits shifted up. Subnormals
  // (m/8 · 2^-6) and NaN are patched in.
  static HWY_INLINE void look_up(VU32 codes, VU32& high, VU32& low) {
    const hn::Repartition<uint8_t, DU32> d8;
    const hn::Repartition<uint16_t, DU32> d16;
    HWY_ALIGN static constexpr uint8_t kHigh[16] = {0x3c, 0x3d, 0x3e, 0x3f, 0x40, 0x41, 0x42, 0x43,
                                                    0xbc, 0xbd, 0xbe, 0xbf, 0xc0, 0xc1, 0xc2, 0xc3};
    HWY_ALIGN static constexpr uint8_t kSubHigh[16] = {0x00, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c};
    HWY_ALIGN static constexpr uint8_t kSubLow[16] = {0x00, 0x00, 0x80, 0xc0, 0x00, 0x20, 0x40, 0x60};
    const auto c = hn::BitCast(d8, codes);
    const auto c16 = hn::BitCast(d16, codes);
    const auto low_nibble = hn::And(c, hn::Set(d8, uint8_t{0x0f}));
    const auto high_nibble = hn::And(hn::BitCast(d8, hn::ShiftRight<4>(c16)), hn::Set(d8, uint8_t{0x0f}));
    const auto sign = hn::And(c, hn::Set(d8, uint8_t{0x80}));
    const auto subnormal = hn::Eq(hn::And(c, hn::Set(d8, uint8_t{0x78})), hn::Zero(d8));
    const auto is_nan = hn::Eq(hn::And(c, hn::Set(d8, uint8_t{0x7f})), hn::Set(d8, uint8_t{0x7f}));
    auto h = hn::TableLookupBytes(hn::LoadDup128(d8, kHigh), high_nibble);
    auto l = hn::BitCast(d8, hn::ShiftLeft<4>(hn::BitCast(d16, low_nibble)));
    h = hn::IfThenElse(subnormal,
                       hn::Or(hn::TableLookupBytes(hn::LoadDup128(d8, kSubHigh), low_nibble), sign), h);
    l = hn::IfThenElse(subnormal, hn::TableLookupBytes(hn::LoadDup128(d8, kSubLow), low_nibble), l);
    h = hn::Or(h, hn::IfThenElseZero(is_nan, hn::Set(d8, uint8_t{0x7f})));
    high = hn::BitCast(DU32(), h);
    low = hn::BitCast(DU32(), l);
  }
#endif

  static HWY_INLINE void widen(VU32 word, VF (&out)[4]) {
    const DU32 du;
    const hn::Repartition<uint16_t, DU32> d16;
    VU32 high, low;
    look_up(word, high, low);
    // Combines bytes to 16-bit halves of 32-bit words: `even` = weights 0 and 2, `odd` = weights 1 and 3.
    const VU32 even = hn::Or(hn::BitCast(du, hn::ShiftLeft<8>(hn::BitCast(d16, high))),
                             hn::And(low, hn::Set(du, 0x00ff00ffU)));
    const VU32 odd = hn::Or(hn::And(high, hn::Set(du, 0xff00ff00U)),
                            hn::BitCast(du, hn::ShiftRight<8>(hn::BitCast(d16, low))));
    const VU32 upper = hn::Set(du, 0xffff0000U);
    out[0] = hn::BitCast(DF(), hn::ShiftLeft<16>(even));
    out[1] = hn::BitCast(DF(), hn::ShiftLeft<16>(odd));
    out[2] = hn::BitCast(DF(), hn::And(even, upper));
    out[3] = hn::BitCast(DF(), hn::And(odd, upper));
  }
};

// Widens int8 through the bits of float32: code + 128 is the code with its sign bit flipped. In the low
// mantissa byte of 2^23 (the second byte of 2^15) it makes 2^23 + 128 + code, and the subtraction is exact.
// The obvious way, with shifts and conversions, would compete with the transposition for the same execution
// ports.
struct UnpackInt8 {
  static constexpr int kPerWord = 4;

  static HWY_INLINE void widen(VU32 word, VF (&out)[4]) {
    const DF df;
    const DU32 du;
    const VU32 byte0 = hn::Set(du, 0x000000ffU);
    const VU32 byte1 = hn::Set(du, 0x0000ff00U);
    const VU32 bits0 = hn::Set(du, 0x4b000080U);  // 2^23, and the flip
    const VU32 bits1 = hn::Set(du, 0x47008000U);  // 2^15
    const VF zero0 = hn::Set(df, 8388608.0F + 128.0F);
    const VF zero1 = hn::Set(df, 32768.0F + 128.0F);
    const VU32 upper = hn::ShiftRight<16>(word);
    out[0] = hn::Sub(hn::BitCast(df, and_xor(word, byte0, bits0)), zero0);
    out[1] = hn::Sub(hn::BitCast(df, and_xor(word, byte1, bits1)), zero1);
    out[2] = hn::Sub(hn::BitCast(df, and_xor(upper, byte0, bits0)), zero0);
    out[3] = hn::Sub(hn::BitCast(df, and_xor(upper, byte1, bits1)), zero1);
  }

  // Returns (a & b) ^ c.
  static HWY_INLINE VU32 and_xor(VU32 a, VU32 b, VU32 c) {
#if HADAL_UNPACK_AVX512
    return VU32{_mm512_ternarylogic_epi32(a.raw, b.raw, c.raw, 0x6a)};
#else
    return hn::Xor(hn::And(a, b), c);
#endif
  }
};

template <class W>
inline constexpr int kWeightBytes = 4 / W::kPerWord;
template <class W>
inline constexpr int kBlockK = kBlockWords* W::kPerWord;  // weights of each row in one transposed block

// Loads the last, incomplete block of `count` < kBlockK weights of N rows: out[k][lane], complete vectors,
// zeros after `count`.
template <class W>
HWY_NOINLINE void load_block_tail(const uint8_t* rows, int64_t stride, int64_t count,
                                  float (&out)[kBlockK<W> * kLanes]) {
  uint8_t copy[kLanes * kBlockBytes] = {};
  for (int r = 0; r < kLanes; ++r) {
    std::memcpy(copy + r * kBlockBytes, rows + r * stride, count * kWeightBytes<W>);
  }
  VU32 words[kBlockWords];
  load_transposed(copy, kBlockBytes, words);
  for (int p = 0; p < kBlockWords; ++p) {
    VF w[W::kPerWord];
    W::widen(words[p], w);
    for (int e = 0; e < W::kPerWord; ++e) hn::StoreU(w[e], DF(), out + (p * W::kPerWord + e) * kLanes);
  }
}

// Widens N rows × k weights to columns of a panel: panel[i · panel_stride + lane].
template <class W>
HWY_INLINE void unpack_rows(const uint8_t* HWY_RESTRICT rows, int64_t stride, int64_t k,
                            float* HWY_RESTRICT panel, int64_t panel_stride) {
  const DF df;
  int64_t i = 0;
  for (; i + kBlockK<W> <= k; i += kBlockK<W>) {
    VU32 words[kBlockWords];
    load_transposed(rows, stride, words);
#pragma GCC unroll 8
    for (int p = 0; p < kBlockWords; ++p) {
      VF w[W::kPerWord];
      W::widen(words[p], w);
#pragma GCC unroll 4
      for (int e = 0; e < W::kPerWord; ++e) {
        hn::StoreU(w[e], df, panel + (p * W::kPerWord + e) * panel_stride);
      }
    }
    rows += kBlockBytes;
    panel += kBlockK<W> * panel_stride;
  }
  if (i < k) {
    float tail[kBlockK<W> * kLanes];
    load_block_tail<W>(rows, stride, k - i, tail);
    for (int64_t j = 0; j < k - i; ++j) {
      hn::StoreU(hn::LoadU(df, tail + j * kLanes), df, panel + j * panel_stride);
    }
  }
}

// Widens two groups of N rows (each `stride` bytes apart) × k weights to a panel [k, 2N], which belongs to
// the calling thread. The rows may be records of the cache, which threads write. ThreadSanitizer is told only
// of the first row of each group.
template <class W>
HADAL_UNCHECKED_BY_TSAN HWY_NOINLINE void unpack_panel(const uint8_t* rows0, const uint8_t* rows1,
                                                       int64_t stride, int64_t k, float* panel) {
  tsan_reads(rows0, k * kWeightBytes<W>);
  tsan_reads(rows1, k * kWeightBytes<W>);
  unpack_rows<W>(rows0, stride, k, panel, kPanelRows);
  unpack_rows<W>(rows1, stride, k, panel + kLanes, kPanelRows);
}

// Rows whose distance is a multiple of this share few sets of an L1 cache, so the lines of a panel evict each
// other before they are fully read.
inline constexpr int64_t kAliasedStride = 1024;

// Copies 2N rows of `bytes` to `staged`, where rows are staged_stride apart, in whole vectors where possible.
HWY_INLINE void copy_rows(const uint8_t* rows0, const uint8_t* rows1, int64_t stride, int64_t bytes,
                          uint8_t* HWY_RESTRICT staged, int64_t staged_stride) {
  const hn::ScalableTag<uint8_t> d8;
  constexpr int64_t kVector = HWY_LANES(uint8_t);
  for (int r = 0; r < kPanelRows; ++r) {
    const uint8_t* HWY_RESTRICT row = (r < kLanes ? rows0 : rows1) + r % kLanes * stride;
    int64_t i = 0;
    for (; i + kVector <= bytes; i += kVector) hn::StoreU(hn::LoadU(d8, row + i), d8, staged + i);
    for (; i < bytes; ++i) staged[i] = row[i];
    staged += staged_stride;
  }
}

#endif  // HWY_NATIVE_FMA

}  // namespace hadal::cpu::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
