// These are the inner loops of absorbed attention over one page of latents, in the current Highway target.
//
// Scores are dot products with SIMD lanes over the 576 dims, so no transposed copy of the keys is needed and
// any number of heads works alike. A tile is kTileHeads heads × 4 keys: it has as many accumulators as a
// vector has lanes, so one transposing tree of additions turns a tile into one vector of scores. Weighted
// sums have lanes over the 512 latents. Every score and every sum is one chain whose order depends on neither
// tile neighbours nor padding.
#if defined(HADAL_KERNELS_CPU_SIMD_ATTENTION_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HADAL_KERNELS_CPU_SIMD_ATTENTION_DECODE_INL_H_
#undef HADAL_KERNELS_CPU_SIMD_ATTENTION_DECODE_INL_H_
#else
#define HADAL_KERNELS_CPU_SIMD_ATTENTION_DECODE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/simd/math_exp-inl.h"
#include "kernels/params/kv_layout.h"

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DecodeD = hn::CappedTag<float, 16>;
using DecodeV = hn::VFromD<DecodeD>;

constexpr int kAttnLanes = static_cast<int>(hn::MaxLanes(DecodeD()));
constexpr int kTileKeys = 4;
constexpr int kTileHeads = kAttnLanes >= kTileKeys ? kAttnLanes / kTileKeys : 1;
constexpr int kTileVectors = 4;  // vectors of latents in the weighted sum

// PrefetchSlice says which bytes the inner loop of a tile prefetches: `step` bytes per iteration (0: none).
struct PrefetchSlice {
  const std::byte* from = nullptr;
  int32_t step = 0;
  HWY_INLINE void iteration(int i) const { __builtin_prefetch(from + int64_t{i} * step, 0, 2); }
};

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void store_sums(const DecodeV (&acc)[kTileHeads][kTileKeys], float* scores, int64_t stride) {
#pragma GCC unroll 16
  for (int h = 0; h < kTileHeads; ++h) {
#pragma GCC unroll 16
    for (int key = 0; key < kTileKeys; ++key) scores[h * stride + key] = hn::GetLane(acc[h][key]);
  }
}
#else
// Turns four vectors into one: each 128-bit block holds the four sums of that block's lanes.
HWY_INLINE DecodeV sum_in_blocks(DecodeV a, DecodeV b, DecodeV c, DecodeV d) {
  const DecodeD df;
  const hn::Repartition<double, DecodeD> d64;
  const DecodeV ab = hn::Add(hn::InterleaveLower(df, a, b), hn::InterleaveUpper(df, a, b));
  const DecodeV cd = hn::Add(hn::InterleaveLower(df, c, d), hn::InterleaveUpper(df, c, d));
  const auto ab64 = hn::BitCast(d64, ab);
  const auto cd64 = hn::BitCast(d64, cd);
  return hn::Add(hn::BitCast(df, hn::InterleaveLower(d64, ab64, cd64)),
                 hn::BitCast(df, hn::InterleaveUpper(d64, ab64, cd64)));
}

// Stores scores[h, key] = Σ lanes of acc[h][key].
HWY_INLINE void store_sums(const DecodeV (&acc)[kTileHeads][kTileKeys], float* scores, int64_t stride) {
  const DecodeD d;
  DecodeV sums[kTileHeads];
#pragma GCC unroll 16
  for (int h = 0; h < kTileHeads; ++h) {
    sums[h] = sum_in_blocks(acc[h][0], acc[h][1], acc[h][2], acc[h][3]);
  }
  alignas(64) float flat[kAttnLanes];
  if constexpr (kTileHeads == 1) {
    hn::Store(sums[0], d, flat);
  } else if constexpr (kTileHeads == 2) {
    hn::Store(hn::Add(hn::ConcatLowerLower(d, sums[1], sums[0]), hn::ConcatUpperUpper(d, sums[1], sums[0])),
              d, flat);
  } else {
    static_assert(kTileHeads == 1 || kTileHeads == 2 || kTileHeads == 4, "vectors of 4, 8 or 16 lanes");
    // Combine halves of heads (0, 2) and (1, 3), then neighbouring blocks, so that heads come out as 0 1 2 3.
    const DecodeV even =
        hn::Add(hn::ConcatLowerLower(d, sums[2], sums[0]), hn::ConcatUpperUpper(d, sums[2], sums[0]));
    const DecodeV odd =
        hn::Add(hn::ConcatLowerLower(d, sums[3], sums[1]), hn::ConcatUpperUpper(d, sums[3], sums[1]));
    hn::Store(hn::OddEvenBlocks(hn::Add(odd, hn::SwapAdjacentBlocks(odd)),
                                hn::Add(even, hn::SwapAdjacentBlocks(even))),
              d, flat);
  }
#pragma GCC unroll 16
  for (int h = 0; h < kTileHeads; ++h) {
#pragma GCC unroll 16
    for (int key = 0; key < kTileKeys; ++key) scores[h * stride + key] = flat[h * kTileKeys + key];
  }
}
#endif

// Computes scores[h, key] = q[h, :] · rows[key, :] for kTileHeads heads and 4 keys; rows are 576 apart.
HWY_INLINE void score_tile(const float* HWY_RESTRICT q, const float* HWY_RESTRICT rows,
                           const PrefetchSlice& prefetch, float* scores) {
  const DecodeD d;
  DecodeV acc[kTileHeads][kTileKeys];
#pragma GCC unroll 16
  for (auto& head : acc) {
#pragma GCC unroll 16
    for (auto& sum : head) sum = hn::Zero(d);
  }
  for (int k = 0; k < kKvRowDim; k += kAttnLanes) {
    prefetch.iteration(k / kAttnLanes);
    DecodeV query[kTileHeads];
#pragma GCC unroll 16
    for (int h = 0; h < kTileHeads; ++h) query[h] = hn::LoadU(d, q + h * kKvRowDim + k);
#pragma GCC unroll 16
    for (int key = 0; key < kTileKeys; ++key) {
      const DecodeV value = hn::Load(d, rows + key * kKvRowDim + k);
#pragma GCC unroll 16
      for (int h = 0; h < kTileHeads; ++h) acc[h][key] = hn::MulAdd(query[h], value, acc[h][key]);
    }
  }
  store_sums(acc, scores, kPageSize);
}

// Applies one step of the online softmax to one head and one page. It turns scores [64] into weights relative
// to the new maximum (a score of −infinity gives 0) and returns their sum.
HWY_INLINE float exponentiate_row(float* scores, float maximum, float log2_scale) {
  const DecodeD d;
  const DecodeV peak = hn::Set(d, maximum);
  const DecodeV factor = hn::Set(d, log2_scale);
  DecodeV sum = hn::Zero(d);
  for (int j = 0; j < kPageSize; j += kAttnLanes) {
    const DecodeV weight = exp2_nonpositive(d, hn::Mul(hn::Sub(hn::Load(d, scores + j), peak), factor));
    hn::Store(weight, d, scores + j);
    sum = hn::Add(sum, weight);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

HWY_INLINE float row_maximum(const float* scores) {
  const DecodeD d;
  DecodeV peak = hn::Load(d, scores);
  for (int j = kAttnLanes; j < kPageSize; j += kAttnLanes) peak = hn::Max(peak, hn::Load(d, scores + j));
  return hn::GetLane(hn::MaxOfLanes(d, peak));
}

// Computes out[h, :] = out[h, :] · rescale[h] + Σ_key weights[h, key] · rows[key, :] for kTileHeads heads and
// kTileVectors vectors of latents. If rescale is null, out is not read. The strides are 64 for weights, 576
// for rows and 512 for out.
HWY_INLINE void weigh_tile(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT rows, int num_keys,
                           const PrefetchSlice& prefetch, const float* rescale, float* HWY_RESTRICT out) {
  const DecodeD d;
  DecodeV acc[kTileHeads][kTileVectors];
#pragma GCC unroll 16
  for (int h = 0; h < kTileHeads; ++h) {
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) {
      acc[h][v] = rescale == nullptr
                      ? hn::Zero(d)
                      : hn::Mul(hn::Load(d, out + h * kKvLatentDim + v * kAttnLanes), hn::Set(d, rescale[h]));
    }
  }
  for (int key = 0; key < num_keys; ++key) {
    prefetch.iteration(key);
    DecodeV value[kTileVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) value[v] = hn::Load(d, rows + key * kKvRowDim + v * kAttnLanes);
#pragma GCC unroll 16
    for (int h = 0; h < kTileHeads; ++h) {
      const DecodeV weight = hn::Set(d, weights[h * kPageSize + key]);
#pragma GCC unroll 16
      for (int v = 0; v < kTileVectors; ++v) acc[h][v] = hn::MulAdd(weight, value[v], acc[h][v]);
    }
  }
#pragma GCC unroll 16
  for (int h = 0; h < kTileHeads; ++h) {
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) hn::Store(acc[h][v], d, out + h * kKvLatentDim + v * kAttnLanes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace hadal::cpu::simd
HWY_AFTER_NAMESPACE();

#endif  // per target
