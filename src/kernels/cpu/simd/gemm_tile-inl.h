// Computes register tiles in float32: C[h, 2N] += A[h, k] · B[k, 2N] (N = lanes of a vector), one fused
// multiply-add chain over k ascending per element. Lanes run over columns of B, so a result has the same bits
// on every instruction set.
//
// Include this inside Highway's foreach_target, after "hwy/highway.h" in the re-included part of the file;
// everything is in hadal::cpu::simd::HWY_NAMESPACE.
//   NN product (B stored [K, N] row-major): set b to the first of 2N columns and b_stride to B's row stride.
//   NT product (B stored [N, K]): first turn 2N rows into a panel [k, 2N] with unpack_panel of unpack-inl.h
//   (b_stride = kPanelRows), then as above.
//   A is row-major (a_stride = its row stride) or packed k-major ([k][h], a_stride = 0).
// Heights are 1 … kMaxTile; the caller loops over bigger blocks. A tile reads exactly h·k floats of A and
// k·2N of B.
#if defined(HADAL_KERNELS_CPU_SIMD_GEMM_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HADAL_KERNELS_CPU_SIMD_GEMM_TILE_INL_H_
#undef HADAL_KERNELS_CPU_SIMD_GEMM_TILE_INL_H_
#else
#define HADAL_KERNELS_CPU_SIMD_GEMM_TILE_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "base/thread_sanitizer.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

inline constexpr int kLanes = static_cast<int>(HWY_LANES(float));
inline constexpr int kPanelRows = 2 * kLanes;  // columns of a B panel, which are weight rows
// A tile needs 2·h accumulators, two vectors of B and one broadcast: as many as there are registers (32, or
// 16 on AVX2).
inline constexpr int kMaxTile = HWY_TARGET == HWY_AVX2 ? 6 : 12;

// Computes c_out: the chain of A·B, which starts from c_in or +0. With `scales`, c_out = fma(chain from +0,
// scales[column / N], c_in or +0), which is the step of block weights.
struct TileArgs {
  const float* a = nullptr;
  int64_t a_stride = 0;  // 0: packed [k][h]
  const float* b = nullptr;
  int64_t b_stride = 0;  // floats between rows of B
  int64_t k = 0;
  const float* c_in = nullptr;  // [h, 2N]; null: zeros
  int64_t c_in_stride = 0;
  float* c_out = nullptr;  // [h, 2N]; may be c_in
  int64_t c_out_stride = 0;
  const float* scales = nullptr;  // [2] or null
  // These two regions are prefetched during the tile, prefetch_step bytes of each per step of k; null means
  // none.
  const uint8_t* prefetch[2] = {};
  int64_t prefetch_step = 0;
};

#if HWY_NATIVE_FMA

template <int H, bool kPackedA>
HWY_INLINE void accumulate_tile(const TileArgs& args, VF (&c)[2 * H]) {
  const DF df;
  const float* HWY_RESTRICT a = args.a;
  const float* HWY_RESTRICT b = args.b;
  const int64_t a_stride = args.a_stride;
  const int64_t b_stride = args.b_stride;
  // Without regions the same line is prefetched again and again, which costs nothing.
  const uint8_t* prefetch0 =
      args.prefetch[0] != nullptr ? args.prefetch[0] : reinterpret_cast<const uint8_t*>(b);
  const uint8_t* prefetch1 =
      args.prefetch[1] != nullptr ? args.prefetch[1] : reinterpret_cast<const uint8_t*>(b);
  const int64_t prefetch_step = args.prefetch_step;
  for (int64_t k = args.k; k > 0; --k) {
    const VF b0 = hn::LoadU(df, b);
    const VF b1 = hn::LoadU(df, b + kLanes);
#pragma GCC unroll 16
    for (int h = 0; h < H; ++h) {
      const VF x = hn::Set(df, a[kPackedA ? h : h * a_stride]);
      c[2 * h] = hn::MulAdd(x, b0, c[2 * h]);
      c[2 * h + 1] = hn::MulAdd(x, b1, c[2 * h + 1]);
    }
    __builtin_prefetch(prefetch0, 0, 2);
    __builtin_prefetch(prefetch1, 0, 2);
    prefetch0 += prefetch_step;
    prefetch1 += prefetch_step;
    a += kPackedA ? H : 1;
    b += b_stride;
  }
}

// Tells ThreadSanitizer what a tile accesses. A few reads of A represent all of them; B is weights or the
// thread's own panel.
template <int H, bool kPackedA>
HWY_INLINE void name_accesses(const TileArgs& args) {
  constexpr size_t kRowBytes = 2 * kLanes * sizeof(float);
  for (int h = 0; h < H; ++h) {
    tsan_reads(args.a + (kPackedA ? h : h * args.a_stride), sizeof(float));
    if (args.c_in != nullptr) tsan_reads(args.c_in + h * args.c_in_stride, kRowBytes);
    tsan_writes(args.c_out + h * args.c_out_stride, kRowBytes);
  }
}

template <int H, bool kPackedA>
HADAL_UNCHECKED_BY_TSAN HWY_NOINLINE void gemm_tile_of_height(const TileArgs& args) {
  name_accesses<H, kPackedA>(args);
  const DF df;
  VF c[2 * H];
  if (args.c_in != nullptr && args.scales == nullptr) {
#pragma GCC unroll 16
    for (int h = 0; h < H; ++h) {
      c[2 * h] = hn::LoadU(df, args.c_in + h * args.c_in_stride);
      c[2 * h + 1] = hn::LoadU(df, args.c_in + h * args.c_in_stride + kLanes);
    }
  } else {
#pragma GCC unroll 32
    for (int i = 0; i < 2 * H; ++i) c[i] = hn::Zero(df);
  }
  accumulate_tile<H, kPackedA>(args, c);
  if (args.scales != nullptr) {
    const VF s0 = hn::Set(df, args.scales[0]);
    const VF s1 = hn::Set(df, args.scales[1]);
    const VF zero = hn::Zero(df);
#pragma GCC unroll 16
    for (int h = 0; h < H; ++h) {
      const float* in = args.c_in + h * args.c_in_stride;
      c[2 * h] = hn::MulAdd(c[2 * h], s0, args.c_in != nullptr ? hn::LoadU(df, in) : zero);
      c[2 * h + 1] = hn::MulAdd(c[2 * h + 1], s1, args.c_in != nullptr ? hn::LoadU(df, in + kLanes) : zero);
    }
  }
#pragma GCC unroll 16
  for (int h = 0; h < H; ++h) {
    hn::StoreU(c[2 * h], df, args.c_out + h * args.c_out_stride);
    hn::StoreU(c[2 * h + 1], df, args.c_out + h * args.c_out_stride + kLanes);
  }
}

template <int H, bool kPackedA>
HWY_INLINE void gemm_tile_dispatch(int height, const TileArgs& args) {
  if constexpr (H > 0) {
    if (height == H) {
      gemm_tile_of_height<H, kPackedA>(args);
    } else {
      gemm_tile_dispatch<H - 1, kPackedA>(height, args);
    }
  }
}

// `height` is the number of rows of A, 1 … kMaxTile.
HWY_INLINE void gemm_tile(int height, const TileArgs& args) {
  if (args.a_stride == 0) {
    gemm_tile_dispatch<kMaxTile, true>(height, args);
  } else {
    gemm_tile_dispatch<kMaxTile, false>(height, args);
  }
}

#endif  // HWY_NATIVE_FMA

}  // namespace hadal::cpu::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
