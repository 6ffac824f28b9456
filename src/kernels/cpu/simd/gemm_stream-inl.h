// Few activations: weights are read once, transposed in registers and multiplied at once. Bound by memory
// bandwidth, so while one panel is computed the next one's bytes are prefetched in the order of their
// addresses: DRAM sees one or two linear streams although 2N rows are read side by side.
//
// For use inside Highway's foreach_target, like gemm_tile-inl.h.
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

// Accumulators of two row groups beside one transposed block.
inline constexpr int kMaxStream = HWY_TARGET == HWY_AVX2 ? 4 : 8;

struct StreamArgs {
  const uint8_t* rows[2] = {};  // two groups of N rows
  int64_t stride = 0;           // bytes between rows
  int64_t k = 0;
  const float* x = nullptr;         // [k][M]
  const float* scales[2] = {};      // fp8: one a group and 128 k
  const uint8_t* prefetch[2] = {};  // what follows, or null: as many bytes as this call reads
  bool continue_sums = false;       // start from `sums` (fp8: join them) instead of +0
  float* sums = nullptr;            // [M][2][N]
};

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
#pragma GCC unroll 2
    for (int g = 0; g < 2; ++g) {
      VU32 words[kBlockWords];
      load_transposed(rows[g], stride, words);
#pragma GCC unroll 8
      for (int p = 0; p < kBlockWords; ++p) {
        VF w[W::kPerWord];
        W::widen(words[p], w);
#pragma GCC unroll 4
        for (int e = 0; e < W::kPerWord; ++e) {
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) {
            acc[2 * m + g] = hn::MulAdd(hn::Set(df, x[(p * W::kPerWord + e) * M + m]), w[e], acc[2 * m + g]);
          }
        }
      }
      rows[g] += kBlockBytes;
    }
    x += kBlockK<W> * M;
  }
  if (k < k_end) {
    for (int g = 0; g < 2; ++g) {
      float tail[kBlockK<W> * kLanes];
      load_block_tail<W>(rows[g], stride, k_end - k, tail);
      for (int64_t i = 0; i < k_end - k; ++i) {
        const VF w = hn::LoadU(df, tail + i * kLanes);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          acc[2 * m + g] = hn::MulAdd(hn::Set(df, x[i * M + m]), w, acc[2 * m + g]);
        }
      }
    }
  }
}

template <class W, int M>
HWY_NOINLINE void stream_rows(const StreamArgs& args) {
  const DF df;
  constexpr bool kScaled = W::kPerWord == 4;
  VF acc[2 * M];
  if constexpr (kScaled) {
    if (!args.continue_sums) {
      for (int i = 0; i < 2 * M; ++i) hn::StoreU(hn::Zero(df), df, args.sums + i * kLanes);
    }
    for (int64_t k = 0; k < args.k; k += kBlockDepth) {
#pragma GCC unroll 16
      for (int i = 0; i < 2 * M; ++i) acc[i] = hn::Zero(df);
      stream_block<W, M>(args, k, std::min(args.k, k + kBlockDepth), acc);
      const VF scale[2] = {hn::Set(df, args.scales[0][k / kBlockDepth]),
                           hn::Set(df, args.scales[1][k / kBlockDepth])};
#pragma GCC unroll 16
      for (int i = 0; i < 2 * M; ++i) {
        float* sum = args.sums + i * kLanes;
        hn::StoreU(hn::MulAdd(acc[i], scale[i % 2], hn::LoadU(df, sum)), df, sum);
      }
    }
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < 2 * M; ++i) {
      acc[i] = args.continue_sums ? hn::LoadU(df, args.sums + i * kLanes) : hn::Zero(df);
    }
    stream_block<W, M>(args, 0, args.k, acc);
#pragma GCC unroll 16
    for (int i = 0; i < 2 * M; ++i) hn::StoreU(acc[i], df, args.sums + i * kLanes);
  }
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

#endif  // HWY_NATIVE_FMA

}  // namespace hadal::cpu::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
