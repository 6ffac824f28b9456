// Multiplies few activations: weights are read once, transposed in registers and multiplied at once. The
// speed is bound by memory bandwidth, so the next panel's bytes are prefetched in the order of their
// addresses while one panel is computed. DRAM then delivers one or two linear streams, although 2N rows are
// read side by side.
//
// Include this inside Highway's foreach_target, like gemm_tile-inl.h.
#if defined(HADAL_KERNELS_CPU_SIMD_GEMM_STREAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HADAL_KERNELS_CPU_SIMD_GEMM_STREAM_INL_H_
#undef HADAL_KERNELS_CPU_SIMD_GEMM_STREAM_INL_H_
#else
#define HADAL_KERNELS_CPU_SIMD_GEMM_STREAM_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/simd/gemm_tile-inl.h"
#include "kernels/cpu/simd/unpack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd::HWY_NAMESPACE {

#if HWY_NATIVE_FMA

// Registers set the limit: they hold the accumulators of two row groups and one transposed block.
inline constexpr int kMaxStream = HWY_TARGET == HWY_AVX2 ? 4 : 8;
// With more activations the sums need the registers, and transposed words are kept in memory.
inline constexpr int kMaxStreamInRegisters = 1;
// Each weight costs a chain the latency of a multiply-add. The chains of one row group cannot keep up with
// the rate at which 8-bit weights are read, so with few activations both groups are multiplied side by side.
template <class W, int M>
inline constexpr bool kSideBySide = W::kPerWord == 4 && M <= 1;

struct StreamArgs {
  const uint8_t* rows[2] = {};  // two groups of N rows
  int64_t stride = 0;           // bytes between rows
  int64_t k = 0;
  const float* x = nullptr;         // [k][M]
  const float* scales[2] = {};      // block weights: one per group and 128 k; null: one chain
  const uint8_t* prefetch[2] = {};  // what to prefetch, or null: as many bytes as this call reads
  bool continue_sums = false;       // start from `sums` (block weights: join them) instead of from +0
  float* sums = nullptr;            // [M][2][N]
};

// Computes acc[m][g] += x[e][m] · weight e of a word, for group g.
template <class W, int M>
HWY_INLINE void multiply_word(VU32 word, const float* HWY_RESTRICT x, int g, VF (&acc)[2 * M]) {
  const DF df;
  VF w[W::kPerWord];
  W::widen(word, w);
#pragma GCC unroll 4
  for (int e = 0; e < W::kPerWord; ++e) {
#pragma GCC unroll 12
    for (int m = 0; m < M; ++m) {
      acc[2 * m + g] = hn::MulAdd(hn::Set(df, x[e * M + m]), w[e], acc[2 * m + g]);
    }
  }
}

template <int kCount>
HWY_INLINE void store_words(const VU32 (&words)[kCount], uint32_t* waiting) {
#pragma GCC unroll 16
  for (int p = 0; p < kCount; ++p) hn::Store(words[p], DU32(), waiting + p * kLanes);
  asm volatile("" : : "r"(waiting) : "memory");  // stored here, not spilled one by one later
}

// Multiplies words [0, count) of group g.
template <class W, int M>
HWY_INLINE void multiply_waiting(const uint32_t* waiting, int count, const float* HWY_RESTRICT x, int g,
                                 VF (&acc)[2 * M]) {
#pragma GCC unroll 2
  for (int p = 0; p < count; ++p) {
    multiply_word<W, M>(hn::Load(DU32(), waiting + p * kLanes), x + p * W::kPerWord * M, g, acc);
  }
}

// Does the same for a word of each group, side by side.
template <class W, int M>
HWY_INLINE void multiply_pair(VU32 word0, VU32 word1, const float* HWY_RESTRICT x, VF (&acc)[2 * M]) {
  const DF df;
  VF w[2][W::kPerWord];
  W::widen(word0, w[0]);
  W::widen(word1, w[1]);
#pragma GCC unroll 4
  for (int e = 0; e < W::kPerWord; ++e) {
#pragma GCC unroll 12
    for (int i = 0; i < 2 * M; ++i) {
      acc[i] = hn::MulAdd(hn::Set(df, x[e * M + i / 2]), w[i % 2][e], acc[i]);
    }
  }
}

template <class W, int M>
HWY_INLINE void stream_block(const StreamArgs& args, int64_t k_begin, int64_t k_end, VF (&acc)[2 * M]) {
  const DF df;
  const float* HWY_RESTRICT x = args.x + k_begin * M;
  const uint8_t* rows[2] = {args.rows[0] + k_begin * kWeightBytes<W>,
                            args.rows[1] + k_begin * kWeightBytes<W>};
  const int64_t stride = args.stride;
  // Every block reads kLanes · kBlockBytes of each group.
  const uint8_t* prefetch[2] = {args.prefetch[0], args.prefetch[1]};
  if (prefetch[0] != nullptr) {
    prefetch[0] += k_begin * kWeightBytes<W> * kLanes;
    prefetch[1] += k_begin * kWeightBytes<W> * kLanes;
  }
  int64_t k = k_begin;
  for (; k + kBlockK<W> <= k_end; k += kBlockK<W>) {
    if (prefetch[0] != nullptr) {
#pragma GCC unroll 8
      for (int line = 0; line < kLanes * kBlockBytes; line += 64) {
        __builtin_prefetch(prefetch[0] + line, 0, 2);
        __builtin_prefetch(prefetch[1] + line, 0, 2);
      }
      prefetch[0] += kLanes * kBlockBytes;
      prefetch[1] += kLanes * kBlockBytes;
    }
    if constexpr (kSideBySide<W, M>) {
      VU32 words[2][kBlockWords];
      load_transposed(rows[0], stride, words[0]);
      load_transposed(rows[1], stride, words[1]);
#pragma GCC unroll 8
      for (int p = 0; p < kBlockWords; ++p) {
        multiply_pair<W, M>(words[0][p], words[1][p], x + p * W::kPerWord * M, acc);
      }
    } else if constexpr (M <= kMaxStreamInRegisters) {
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {
        VU32 words[kBlockWords];
        load_transposed(rows[g], stride, words);
#pragma GCC unroll 8
        for (int p = 0; p < kBlockWords; ++p) multiply_word<W, M>(words[p], x + p * W::kPerWord * M, g, acc);
      }
    } else {
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {
        HWY_ALIGN uint32_t waiting[kBlockWords * kLanes];
        VU32 words[kBlockWords];
        load_transposed(rows[g], stride, words);
        store_words<kBlockWords>(words, waiting);
        multiply_waiting<W, M>(waiting, kBlockWords, x, g, acc);
      }
    }
    rows[0] += kBlockBytes;
    rows[1] += kBlockBytes;
    x += kBlockK<W> * M;
  }
  if (k < k_end) {
    for (int g = 0; g < 2; ++g) {
      float tail[kBlockK<W> * kLanes];
      load_block_tail<W>(rows[g], stride, k_end - k, tail);
      for (int64_t i = 0; i < k_end - k; ++i) {
        const VF w = hn::LoadU(df, tail + i * kLanes);
#pragma GCC unroll 12
        for (int m = 0; m < M; ++m) {
          acc[2 * m + g] = hn::MulAdd(hn::Set(df, x[i * M + m]), w, acc[2 * m + g]);
        }
      }
    }
  }
}

// Only words of four codes are scaled by blocks.
template <class W>
HWY_INLINE bool has_blocks(const StreamArgs& args) {
  return W::kPerWord == 4 && args.scales[0] != nullptr;
}

// Joins row group g: sums = fma(acc, scale of block, sums), then acc = 0.
template <int M>
HWY_INLINE void join_block(const StreamArgs& args, int64_t block, int g, VF (&acc)[2 * M]) {
  const DF df;
  const VF scale = hn::Set(df, args.scales[g][block]);
#pragma GCC unroll 12
  for (int m = 0; m < M; ++m) {
    float* sum = args.sums + (2 * m + g) * kLanes;
    hn::StoreU(hn::MulAdd(acc[2 * m + g], scale, hn::LoadU(df, sum)), df, sum);
    acc[2 * m + g] = hn::Zero(df);
  }
}

// Tells ThreadSanitizer what a call accesses, except the weights, which nothing writes.
template <int M>
HWY_INLINE void name_accesses(const StreamArgs& args) {
  tsan_reads(args.x, args.k * M * sizeof(float));
  tsan_writes(args.sums, 2 * M * kLanes * sizeof(float));
}

template <class W, int M>
HADAL_UNCHECKED_BY_TSAN HWY_NOINLINE void stream_rows(const StreamArgs& args) {
  name_accesses<M>(args);
  const DF df;
  const bool blocks = has_blocks<W>(args);
  const int64_t step = blocks ? kBlockDepth : args.k;
  VF acc[2 * M];
#pragma GCC unroll 24
  for (int i = 0; i < 2 * M; ++i) {
    acc[i] = args.continue_sums ? hn::LoadU(df, args.sums + i * kLanes) : hn::Zero(df);
    if (blocks) {
      hn::StoreU(acc[i], df, args.sums + i * kLanes);
      acc[i] = hn::Zero(df);
    }
  }
  for (int64_t k = 0; k < args.k; k += step) {
    stream_block<W, M>(args, k, std::min(args.k, k + step), acc);
    if (blocks) {
      join_block<M>(args, k / kBlockDepth, 0, acc);
      join_block<M>(args, k / kBlockDepth, 1, acc);
    }
  }
  if (blocks) return;
#pragma GCC unroll 24
  for (int i = 0; i < 2 * M; ++i) hn::StoreU(acc[i], df, args.sums + i * kLanes);
}

template <class W, int M = kMaxStream>
HWY_INLINE void stream_rows_dispatch(int64_t m, const StreamArgs& args) {
  if constexpr (M > 0) {
    if (m == M) {
      stream_rows<W, M>(args);
    } else {
      stream_rows_dispatch<W, M - 1>(m, args);
    }
  }
}

#if HADAL_UNPACK_AVX512

// The lines kernel reads rows as whole, aligned cache lines, each exactly once. It is for strides that are
// multiples of kAliasedStride: there the 2N lines read side by side share a few sets of the L1 cache, and a
// half-read line would be evicted before its second half is needed. A row may begin at any weight of its line
// (with 8-bit weights at any fourth one, so that borders of scales fall between 32-bit words). A row's first
// and last line use the slow path below.
template <class W>
bool can_stream_lines(const StreamArgs& args) {
  const auto a0 = reinterpret_cast<uintptr_t>(args.rows[0]);
  const auto a1 = reinterpret_cast<uintptr_t>(args.rows[1]);
  return args.stride % kAliasedStride == 0 && a0 % 64 == a1 % 64 &&
         a0 % (W::kPerWord == 4 ? 4 : kWeightBytes<W>) == 0;
}

// Multiplies words [0, count) of both groups; group 1's words follow group 0's one line later.
template <class W, int M>
HWY_INLINE void multiply_waiting_pairs(const uint32_t* waiting, int count, const float* HWY_RESTRICT x,
                                       VF (&acc)[2 * M]) {
  const DU32 du;
#pragma GCC unroll 2
  for (int p = 0; p < count; ++p) {
    const uint32_t* word = waiting + p * kLanes;
    multiply_pair<W, M>(hn::Load(du, word), hn::Load(du, word + kLineWords * kLanes), x + p * W::kPerWord * M,
                        acc);
  }
}

// Multiplies one line weight by weight, counting only the weights inside [0, args.k). `k` belongs to the
// line's first weight and may be negative. acc: [M][2][N].
template <class W, int M>
HADAL_UNCHECKED_BY_TSAN HWY_NOINLINE void stream_cut_line(const StreamArgs& args, const uint8_t* line0,
                                                          const uint8_t* line1, int64_t k, float* acc) {
  const DF df;
  constexpr int kLineK = kLineWords * W::kPerWord;
  const int64_t begin = std::max<int64_t>(0, -k);
  const int64_t end = std::min<int64_t>(kLineK, args.k - k);
  const uint64_t below_end = end == kLineK ? ~uint64_t{0} : (uint64_t{1} << (end * kWeightBytes<W>)) - 1;
  const uint64_t valid = below_end & (~uint64_t{0} << (begin * kWeightBytes<W>));
  HWY_ALIGN float weights[2][kLineK * kLanes];
  for (int g = 0; g < 2; ++g) {
    VU32 words[kLineWords];
    load_lines_transposed<true>(g == 0 ? line0 : line1, args.stride, valid, words);
    for (int p = 0; p < kLineWords; ++p) {
      VF w[W::kPerWord];
      W::widen(words[p], w);
      for (int e = 0; e < W::kPerWord; ++e) hn::Store(w[e], df, weights[g] + (p * W::kPerWord + e) * kLanes);
    }
  }
  const bool blocks = has_blocks<W>(args);
  VF sum[2 * M];
#pragma GCC unroll 24
  for (int i = 0; i < 2 * M; ++i) sum[i] = hn::LoadU(df, acc + i * kLanes);
  for (int64_t i = begin; i < end; ++i) {
    const float* x = args.x + (k + i) * M;
    const VF w[2] = {hn::Load(df, weights[0] + i * kLanes), hn::Load(df, weights[1] + i * kLanes)};
#pragma GCC unroll 24
    for (int j = 0; j < 2 * M; ++j) sum[j] = hn::MulAdd(hn::Set(df, x[j / 2]), w[j % 2], sum[j]);
    if (blocks) {
      const int64_t after = k + i + 1;
      if (after % kBlockDepth == 0 || after == args.k) {
        join_block<M>(args, (k + i) / kBlockDepth, 0, sum);
        join_block<M>(args, (k + i) / kBlockDepth, 1, sum);
      }
    }
  }
#pragma GCC unroll 24
  for (int i = 0; i < 2 * M; ++i) hn::StoreU(sum[i], df, acc + i * kLanes);
}

// Sums start from +0.
template <class W, int M>
HADAL_UNCHECKED_BY_TSAN HWY_NOINLINE void stream_lines(const StreamArgs& args) {
  name_accesses<M>(args);
  const DF df;
  const bool blocks = has_blocks<W>(args);
  constexpr int kLineK = kLineWords * W::kPerWord;
  const int64_t misalignment = static_cast<int64_t>(reinterpret_cast<uintptr_t>(args.rows[0]) % 64);
  const uint8_t* lines[2] = {args.rows[0] - misalignment, args.rows[1] - misalignment};
  const uint8_t* prefetch[2] = {args.prefetch[0], args.prefetch[1]};
  const int64_t num_k = args.k;
  const int64_t block_of_last = (num_k - 1) / kBlockDepth;
  VF acc[2 * M];
#pragma GCC unroll 24
  for (int i = 0; i < 2 * M; ++i) {
    acc[i] = hn::Zero(df);
    if (blocks) hn::StoreU(acc[i], df, args.sums + i * kLanes);
  }
  for (int64_t k = -misalignment / kWeightBytes<W>; k < num_k; k += kLineK) {
    if (prefetch[0] != nullptr) {
#pragma GCC unroll 16
      for (int line = 0; line < kLanes * 64; line += 64) {
        __builtin_prefetch(prefetch[0] + line, 0, 2);
        __builtin_prefetch(prefetch[1] + line, 0, 2);
      }
      prefetch[0] += kLanes * 64;
      prefetch[1] += kLanes * 64;
    }
    if (k < 0 || k + kLineK > num_k) {
      HWY_ALIGN float saved[2 * M * kLanes];
#pragma GCC unroll 24
      for (int i = 0; i < 2 * M; ++i) hn::Store(acc[i], df, saved + i * kLanes);
      stream_cut_line<W, M>(args, lines[0], lines[1], k, saved);
#pragma GCC unroll 24
      for (int i = 0; i < 2 * M; ++i) acc[i] = hn::Load(df, saved + i * kLanes);
    } else {
      const float* HWY_RESTRICT x = args.x + k * M;
      // This is the word after which a scale block ends, if it ends in this line.
      const int64_t block = k / kBlockDepth;
      const int last_word =
          blocks ? static_cast<int>(((block + 1) * kBlockDepth - k) / W::kPerWord) - 1 : kLineWords;
      if constexpr (kSideBySide<W, M>) {
        const int first_part = std::min(last_word + 1, kLineWords);
        HWY_ALIGN uint32_t waiting[2 * kLineWords * kLanes];
#pragma GCC unroll 2
        for (int g = 0; g < 2; ++g) {
          VU32 words[kLineWords];
          load_lines_transposed<false>(lines[g], args.stride, 0, words);
          store_words<kLineWords>(words, waiting + g * kLineWords * kLanes);
        }
        multiply_waiting_pairs<W, M>(waiting, first_part, x, acc);
        if (last_word < kLineWords) {
          join_block<M>(args, block, 0, acc);
          join_block<M>(args, block, 1, acc);
          multiply_waiting_pairs<W, M>(waiting + first_part * kLanes, kLineWords - first_part,
                                       x + first_part * W::kPerWord * M, acc);
        }
      } else if constexpr (M <= kMaxStreamInRegisters) {
#pragma GCC unroll 2
        for (int g = 0; g < 2; ++g) {
          VU32 words[kLineWords];
          load_lines_transposed<false>(lines[g], args.stride, 0, words);
#pragma GCC unroll 16
          for (int p = 0; p < kLineWords; ++p) {
            multiply_word<W, M>(words[p], x + p * W::kPerWord * M, g, acc);
            if (W::kPerWord == 4 && p == last_word) join_block<M>(args, block, g, acc);
          }
        }
      } else {
        const int first_part = std::min(last_word + 1, kLineWords);
#pragma GCC unroll 2
        for (int g = 0; g < 2; ++g) {
          HWY_ALIGN uint32_t waiting[kLineWords * kLanes];
          VU32 words[kLineWords];
          load_lines_transposed<false>(lines[g], args.stride, 0, words);
          store_words<kLineWords>(words, waiting);
          multiply_waiting<W, M>(waiting, first_part, x, g, acc);
          if (W::kPerWord == 4 && last_word < kLineWords) {
            join_block<M>(args, block, g, acc);
            multiply_waiting<W, M>(waiting + first_part * kLanes, kLineWords - first_part,
                                   x + first_part * W::kPerWord * M, g, acc);
          }
        }
      }
      // The last block may be short.
      if (blocks && k + kLineK == num_k && num_k % kBlockDepth != 0) {
        join_block<M>(args, block_of_last, 0, acc);
        join_block<M>(args, block_of_last, 1, acc);
      }
    }
    lines[0] += 64;
    lines[1] += 64;
  }
  if (blocks) return;
#pragma GCC unroll 24
  for (int i = 0; i < 2 * M; ++i) hn::StoreU(acc[i], df, args.sums + i * kLanes);
}

template <class W, int M = kMaxStream>
HWY_INLINE void stream_lines_dispatch(int64_t m, const StreamArgs& args) {
  if constexpr (M > 0) {
    if (m == M) {
      stream_lines<W, M>(args);
    } else {
      stream_lines_dispatch<W, M - 1>(m, args);
    }
  }
}

#endif  // HADAL_UNPACK_AVX512

// Multiplies m activations over all of k, with sums from +0, by the kernel that suits the rows' layout.
template <class W>
HWY_INLINE void stream_panel(int64_t m, const StreamArgs& args) {
#if HADAL_UNPACK_AVX512
  if (can_stream_lines<W>(args)) return stream_lines_dispatch<W>(m, args);
#endif
  stream_rows_dispatch<W>(m, args);
}

#endif  // HWY_NATIVE_FMA

}  // namespace hadal::cpu::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
