// Scores index keys in the current Highway target (kernels/params/indexer.h). 2N keys (N = lanes of a vector)
// are read in place from their page and widened to a panel [128, 2N], whose columns are the keys. A tile is
// kScoreHeads heads × 2N keys; relu and the sum over heads are applied to its products in registers. Lanes
// run over keys, so a score has the same bits on every instruction set.
#if defined(HADAL_KERNELS_CPU_SIMD_INDEX_SCORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HADAL_KERNELS_CPU_SIMD_INDEX_SCORE_INL_H_
#undef HADAL_KERNELS_CPU_SIMD_INDEX_SCORE_INL_H_
#else
#define HADAL_KERNELS_CPU_SIMD_INDEX_SCORE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/simd/gemm_tile-inl.h"
#include "kernels/cpu/simd/unpack-inl.h"
#include "kernels/params/indexer.h"

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_NATIVE_FMA

using IndexI = hn::RebindToSigned<DF>;

// A tile has this many heads, which divides the usual numbers of heads and leaves registers for the panel and
// a broadcast.
inline constexpr int kScoreHeads = HWY_TARGET == HWY_AVX2 ? 4 : 8;

// Widens keys [first, first + 2N) of a page to panel [128, 2N].
HWY_INLINE void widen_index_keys(const std::byte* page, KvIndex layout, int64_t first, float* panel) {
  const auto unpack = [&](auto format, int64_t key_bytes) HWY_ATTR {
    const auto* rows = reinterpret_cast<const uint8_t*>(page) + first * key_bytes;
    unpack_panel<decltype(format)>(rows, rows + kLanes * key_bytes, key_bytes, kIndexHeadDim, panel);
  };
  if (layout == KvIndex::kF32) {
    unpack(UnpackF32(), kKvIndexBytesF32);
  } else {
    unpack(UnpackE4m3(), kIndexHeadDim);
  }
}

// Continues the sums over heads of 2N keys by H heads: q is [H, 128], w [H].
template <int H>
HWY_INLINE void add_heads(const float* HWY_RESTRICT q, const float* HWY_RESTRICT w,
                          const float* HWY_RESTRICT panel, VF (&sums)[2]) {
  const DF d;
  VF c[2 * H];
#pragma GCC unroll 32
  for (auto& product : c) product = hn::Zero(d);
  for (int k = 0; k < kIndexHeadDim; ++k) {
    const VF b0 = hn::LoadU(d, panel + k * kPanelRows);
    const VF b1 = hn::LoadU(d, panel + k * kPanelRows + kLanes);
#pragma GCC unroll 16
    for (int h = 0; h < H; ++h) {
      const VF value = hn::Set(d, q[h * kIndexHeadDim + k]);
      c[2 * h] = hn::MulAdd(value, b0, c[2 * h]);
      c[2 * h + 1] = hn::MulAdd(value, b1, c[2 * h + 1]);
    }
  }
  const VF zero = hn::Zero(d);
#pragma GCC unroll 16
  for (int h = 0; h < H; ++h) {
    // With this operand order x86's max passes a NaN through.
    const VF weight = hn::Set(d, w[h]);
    sums[0] = hn::MulAdd(hn::Max(zero, c[2 * h]), weight, sums[0]);
    sums[1] = hn::MulAdd(hn::Max(zero, c[2 * h + 1]), weight, sums[1]);
  }
}

template <int H>
HWY_INLINE void add_last_heads(int count, const float* q, const float* w, const float* panel, VF (&sums)[2]) {
  if constexpr (H > 0) {
    if (count == H) {
      add_heads<H>(q, w, panel, sums);
    } else {
      add_last_heads<H - 1>(count, q, w, panel, sums);
    }
  }
}

// Maps scores to integers of the same order: −0 equals 0, and a NaN becomes the least integer.
HWY_INLINE hn::VFromD<IndexI> ordered_score(VF score) {
  const DF d;
  const IndexI di;
  const auto bits = hn::BitCast(di, hn::Add(score, hn::Zero(d)));
  const auto flipped = hn::Xor(bits, hn::And(hn::ShiftRight<31>(bits), hn::Set(di, 0x7fffffff)));
  return hn::IfThenElse(hn::RebindMask(di, hn::IsNaN(score)),
                        hn::Set(di, std::numeric_limits<int32_t>::min()), flipped);
}

// Writes the ordered scores of a panel's 2N keys for one query: q is [num_heads, 128], w [num_heads], and
// key_scales [2N] (null: 1).
HWY_INLINE void score_panel(const float* q, const float* w, int num_heads, const float* panel,
                            const float* key_scales, int32_t* out) {
  const DF d;
  const IndexI di;
  VF sums[2] = {hn::Zero(d), hn::Zero(d)};
  int head = 0;
  for (; head + kScoreHeads <= num_heads; head += kScoreHeads) {
    add_heads<kScoreHeads>(q + head * kIndexHeadDim, w + head, panel, sums);
  }
  add_last_heads<kScoreHeads - 1>(num_heads - head, q + head * kIndexHeadDim, w + head, panel, sums);
  for (int i = 0; i < 2; ++i) {
    if (key_scales != nullptr) sums[i] = hn::Mul(sums[i], hn::LoadU(d, key_scales + i * kLanes));
    hn::StoreU(ordered_score(sums[i]), di, out + i * kLanes);
  }
}

#endif  // HWY_NATIVE_FMA

}  // namespace HWY_NAMESPACE
}  // namespace hadal::cpu::simd
HWY_AFTER_NAMESPACE();

#endif  // per target
