// What the warpgroups of decode_tiles.cuh share: shared memory, products in either 16-bit type, and the
// softmax of a page.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/mla/decode_pieces.cuh"

namespace hadal::cuda::tiles {

constexpr int kRows = 64;
constexpr int kThreads = 384;
constexpr int kComputeThreads = 256;
constexpr int kTiles = kKvRowDim / 64;
constexpr int kTileBytes = kPageSize * 128;
constexpr int kHalfTiles = 4;          // of the output's columns of one warpgroup
constexpr float kMaximumSlack = 8.0F;  // base 2
constexpr float kLn2 = 0.6931471805599453F;

enum NamedBarrier { kWithinLeft = 1, kWithinRight };

struct Shared {
  std::byte queries[kTiles * kTileBytes];
  std::byte keys[2][kTiles * kTileBytes];
  std::byte weights[kTileBytes];  // P₀
  float maximum[kRows];           // base 2
  float rescale[2][kRows];        // a₀, a₁
  float sums[2][2][kRows];        // of a piece: left, right; the next piece has the other half
  Mbarrier q_full, q_empty;
  Mbarrier full[2][2], empty[2][2];
  Mbarrier first_weights, second_weights;  // hand-overs between left and right
  Mbarrier q_widened;                      // where both meet
};
constexpr size_t kSharedBytes = (sizeof(Shared) + 1023) / 1024 * 1024;
static_assert(kSharedBytes <= 227 * 1024, "fits a multiprocessor");

// Zeroes the records of a loaded page from `valid` on, by the 128 threads of a warpgroup.
__device__ __forceinline__ void zero_records(std::byte* tiles, Mbarrier (&full)[2], uint32_t parity,
                                             int valid, int named_barrier) {
  mbarrier_wait(&full[0], parity);
  mbarrier_wait(&full[1], parity);
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int chunks = (kPageSize - valid) * 8;  // of a tile
  for (int i = thread; i < chunks * kTiles; i += 128) {
    *reinterpret_cast<uint4*>(tiles + i / chunks * kTileBytes + valid * 128 + i % chunks * 16) =
        make_uint4(0, 0, 0, 0);
  }
  fence_proxy_async_shared();
  named_barrier_sync(named_barrier, 128);
}

// S = Q · Kᵀ over the page's two groups of tiles, the first group while the second may still be on its way.
template <bool kIsLeft, bool kF16>
__device__ __forceinline__ void make_scores(float (&s)[32], const std::byte* queries, const std::byte* keys,
                                            Mbarrier (&full)[2], uint32_t parity) {
  constexpr int kOrder[kTiles] = {kIsLeft ? 0 : 4, kIsLeft ? 1 : 5, kIsLeft ? 2 : 6,
                                  kIsLeft ? 3 : 7, kIsLeft ? 8 : 0, kIsLeft ? 4 : 1,
                                  kIsLeft ? 5 : 2, kIsLeft ? 6 : 3, kIsLeft ? 7 : 8};
  constexpr int kFirstGroup = kIsLeft ? 5 : 4;
  const uint64_t q = wgmma_k_major(queries);
  const uint64_t k = wgmma_k_major(keys);
  mbarrier_wait(&full[0], parity);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    if (i == kFirstGroup) {
      mbarrier_wait(&full[1], parity);
      wgmma_fence();
    }
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint32_t at = kOrder[i] * kTileBytes + step * 32;
      if constexpr (kF16) {
        wgmma_f16<64>(s, wgmma_advance(q, at), wgmma_advance(k, at), i + step > 0);
      } else {
        wgmma_bf16<64>(s, wgmma_advance(q, at), wgmma_advance(k, at), i + step > 0);
      }
    }
  }
  wgmma_commit();
}

// Scores of keys that a row does not see become −∞.
__device__ __forceinline__ void mask(float (&s)[32], const int (&visible)[2], int first_key) {
  const int column = 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int limit = visible[h] - first_key - column;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& value = s[4 * j + 2 * h + c];
        value = 8 * j + c < limit ? value : -INFINITY;
      }
    }
  }
}

// Scores to weights, 2^(score · scale_log2 − maximum); adds the row sums of the thread's columns to `sum`
// after rescaling it. `maximum` (of the thread's two rows) is renewed when a score exceeds it by more than
// the slack. Returns the rescaling factors.
__device__ __forceinline__ float2 softmax(float (&s)[32], float (&maximum)[2], float (&sum)[2],
                                          float scale_log2) {
  float factors[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float top = s[2 * h];
#pragma unroll
    for (int i = 1; i < 16; ++i) top = fmaxf(top, s[i / 2 * 4 + 2 * h + i % 2]);
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 2)) * scale_log2;
    const float renewed = top > maximum[h] + kMaximumSlack ? top : maximum[h];
    const float base = renewed == -INFINITY ? 0.0F : renewed;
    factors[h] = exp2_fast(maximum[h] - base);
    maximum[h] = renewed;
    float added = 0.0F;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float& value = s[i / 2 * 4 + 2 * h + i % 2];
      value = exp2_fast(fmaf(value, scale_log2, -base));
      added += value;
    }
    sum[h] = sum[h] * factors[h] + added;
  }
  return {factors[0], factors[1]};
}

// In the last pair of a piece, before its hand-over: the row sums of the thread's warpgroup to `sums`,
// [kRows]. Left's lack the factor a₁.
__device__ __forceinline__ void publish_sums(const float (&sum)[2], float* sums, int own_row) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float total = sum[h] + __shfl_xor_sync(0xffffffffU, sum[h], 1);
    total += __shfl_xor_sync(0xffffffffU, total, 2);
    if (threadIdx.x % 4 == 0) sums[own_row + 8 * h] = total;
  }
}

// Factors are 1 unless a row's maximum has grown: most pages of a long sequence leave the accumulators alone.
__device__ __forceinline__ void rescale(float (&values)[128], float2 factors) {
  if (__all_sync(0xffffffffU, factors.x == 1.0F && factors.y == 1.0F)) return;
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    values[4 * j] *= factors.x;
    values[4 * j + 1] *= factors.x;
    values[4 * j + 2] *= factors.y;
    values[4 * j + 3] *= factors.y;
  }
}

template <bool kF16>
__device__ __forceinline__ uint32_t pack_two(float low, float high) {
  if constexpr (kF16) {
    const __half2 packed = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&packed);
  } else {
    return pack_bf16(low, high);
  }
}

// Weights as operand A, four words for each 16 keys.
template <bool kF16>
__device__ __forceinline__ void pack(uint32_t (&a)[16], const float (&s)[32]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) a[i] = pack_two<kF16>(s[2 * i], s[2 * i + 1]);
}
__device__ __forceinline__ void store_weights(std::byte* tile, const uint32_t (&a)[16]) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t row = warp * 16 + (lane / 8) % 2 * 8 + lane % 8;
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    store_matrix_x4(shared_address(tile) + swizzle_128(row, j + lane / 16), a[2 * j], a[2 * j + 1],
                    a[2 * j + 2], a[2 * j + 3]);
  }
  fence_proxy_async_shared();
}

// O += P · V over a page, left in flight: P from registers (which stay untouched until the wait), or from a
// tile of shared memory. `values`: the first of four column tiles.
template <bool kF16>
__device__ __forceinline__ void add_values(float (&out)[128], const uint32_t (&a)[16],
                                           const std::byte* values) {
  const uint64_t v = wgmma_mn_major(values, kTileBytes);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint32_t words[4] = {a[4 * step], a[4 * step + 1], a[4 * step + 2], a[4 * step + 3]};
    if constexpr (kF16) {
      wgmma_f16_rs<256, true>(out, words, wgmma_advance(v, step * 2048), true);
    } else {
      wgmma_bf16_rs<256, true>(out, words, wgmma_advance(v, step * 2048), true);
    }
  }
  wgmma_commit();
}
template <bool kF16>
__device__ __forceinline__ void add_values(float (&out)[128], const std::byte* weights,
                                           const std::byte* values) {
  const uint64_t p = wgmma_k_major(weights);
  const uint64_t v = wgmma_mn_major(values, kTileBytes);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    if constexpr (kF16) {
      wgmma_f16<256, false, true>(out, wgmma_advance(p, step * 32), wgmma_advance(v, step * 2048), true);
    } else {
      wgmma_bf16<256, false, true>(out, wgmma_advance(p, step * 32), wgmma_advance(v, step * 2048), true);
    }
  }
  wgmma_commit();
}

// Both sides meet here; `meetings` counts those at this barrier before.
__device__ __forceinline__ void meet(Mbarrier* barrier, uint32_t meetings) {
  mbarrier_arrive(barrier);
  mbarrier_wait(barrier, meetings & 1U);
}

// Of one warp: it has read what the barrier guards. In a cluster the loads of all blocks wait for it.
template <int kCluster>
__device__ __forceinline__ void free_tiles(Mbarrier* barrier, int lane) {
  if constexpr (kCluster > 1) {
    if (lane < kCluster) mbarrier_arrive_remote(barrier, lane);
  } else {
    if (lane == 0) mbarrier_arrive(barrier);
  }
}

}  // namespace hadal::cuda::tiles
