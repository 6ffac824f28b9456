// Holds the parts that the warpgroups of mla/decode/tiles/kernel.cuh share: shared memory, products in either
// 16-bit type, and the softmax of a page.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/common/matrix.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/mla/decode/shared/newest.cuh"
#include "kernels/cuda/mla/decode/shared/pieces.cuh"

namespace hadal::cuda::tiles {

constexpr int kRows = 64;
constexpr int kThreads = 384;
constexpr int kComputeThreads = 256;
constexpr int kTiles = kKvRowDim / 64;
constexpr int kTileBytes = kPageSize * 128;
constexpr int kHalfTiles = 4;          // column tiles in one warpgroup's half of the output
constexpr float kMaximumSlack = 8.0F;  // base 2

constexpr int kHeld = 1;   // tiles of queries that the computing threads hold in registers
constexpr int kFreed = 3;  // steps in which a page's tiles become free

enum NamedBarrier { kWithinLeft = 1, kWithinRight };

struct Shared {
  std::byte queries[kTiles * kTileBytes];
  std::byte keys[2][kTiles * kTileBytes];
  std::byte weights[kTileBytes];  // P₀
  float maximum[kRows];           // base 2
  float rescale[2][kRows];        // a₀, a₁
  float sums[2][2][kRows];        // row sums [piece mod 2][left, right]
  Mbarrier q_full, q_empty;
  Mbarrier full[2][kTiles], empty[2][kFreed];
  Mbarrier first_weights, second_weights;  // hand-overs between left and right
  Mbarrier q_widened;                      // both sides have widened the queries
};
constexpr size_t kSharedBytes = (sizeof(Shared) + 1023) / 1024 * 1024;
static_assert(kSharedBytes <= kMaxSharedBytes, "the shared memory of a block");

// Returns the barrier of a tile's arrival. Widened tiles arrive in two groups: tiles 0…3 and 8, and tiles
// 4…7.
template <bool kWidened>
__device__ __forceinline__ Mbarrier* full_of(Mbarrier (&full)[kTiles], int tile) {
  return &full[!kWidened ? tile : tile / kHalfTiles == 1 ? kHalfTiles : 0];
}

// Zeroes the records of a page of 16-bit values from `valid` on, and those that masks hide from all queries,
// once the page has arrived. It is called by the 128 threads of a warpgroup, and does nothing if there are no
// such records.
template <bool kMasks>
__device__ __forceinline__ void zero_records(const DecodeArgs& args, int seq, std::byte* tiles,
                                             Mbarrier (&full)[kTiles], uint32_t parity, int valid,
                                             int named_barrier) {
  const bool masked = may_hide<kMasks>(valid);
  if (!masked && valid >= kPageSize) return;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const uint64_t seen = masked ? seen_by_any(args, seq, valid) : 0;
  const int begin = masked ? 0 : valid;
#pragma unroll 1
  for (int tile = 0; tile < kTiles; ++tile) {
    mbarrier_wait(&full[tile], parity);
#pragma unroll 1
    for (int i = begin * 8 + thread; i < kPageSize * 8; i += 128) {
      if ((seen >> (i / 8) & 1) == 0)
        *reinterpret_cast<uint4*>(tiles + tile * kTileBytes + i * 16) = make_uint4(0, 0, 0, 0);
    }
  }
  fence_proxy_async_shared();
  named_barrier_sync(named_barrier, 128);
}

// Returns the descriptor of the address `bytes` further on. The address part never overflows the lower word,
// so one 32-bit addition suffices instead of two with a carry.
__device__ __forceinline__ uint64_t advance(uint64_t descriptor, uint32_t bytes) {
  const uint32_t low = static_cast<uint32_t>(descriptor) + (bytes >> 4);
  return (descriptor & 0xFFFFFFFF00000000U) | low;
}

// Returns the i-th tile in the order in which a page's tiles become free, are loaded and are scored.
template <bool kIsLeft>
__device__ constexpr int tile_in_order(int i) {
  return kIsLeft ? (i == 0 ? kTiles - 1 : i - 1) : (i == kTiles - 1 ? i : (i + kHalfTiles) % (kTiles - 1));
}

// Loads the last tiles of the queries into registers as operand A, sixteen words for each tile.
template <int kWords>
__device__ __forceinline__ void hold_queries(uint32_t (&held)[kWords], const std::byte* queries) {
  const uint32_t warp = threadIdx.x / 32 % 4;
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const std::byte* tile = queries + (kTiles - kWords / 16 + i / 16) * kTileBytes;
    const uint32_t row = warp * 16 + i % 2 * 8 + lane / 4;
    held[i] = *reinterpret_cast<const uint32_t*>(tile + swizzle_128(row, i % 16 / 2) + lane % 4 * 4);
  }
}

// Computes S = Q · Kᵀ over the tiles kBegin…kEnd − 1, counted in the order of tile_in_order, each as soon as
// it has arrived. It does not wait for the products.
template <bool kIsLeft, bool kF16, bool kWidened, int kBegin, int kEnd>
__device__ __forceinline__ void make_scores(float (&s)[32], const std::byte* queries,
                                            const uint32_t (&held)[kHeld * 16], const std::byte* keys,
                                            Mbarrier (&full)[kTiles], uint32_t parity) {
  const uint64_t q = wgmma_k_major(queries);
  const uint64_t k = wgmma_k_major(keys);
#pragma unroll
  for (int i = kBegin; i < kEnd; ++i) {
    const int tile = tile_in_order<kIsLeft>(i);
    mbarrier_wait(full_of<kWidened>(full, tile), parity);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint32_t at = tile * kTileBytes + step * 32;
      if (!kWidened && tile >= kTiles - kHeld) {
        const int w = (tile - kTiles + kHeld) * 16 + step * 4;
        const uint32_t words[4] = {held[w], held[w + 1], held[w + 2], held[w + 3]};
        if constexpr (kF16) {
          wgmma_f16_rs<64, false>(s, words, advance(k, at), i + step > 0);
        } else {
          wgmma_bf16_rs<64, false>(s, words, advance(k, at), i + step > 0);
        }
        continue;
      }
      if constexpr (kF16) {
        wgmma_f16<64>(s, advance(q, at), advance(k, at), i + step > 0);
      } else {
        wgmma_bf16<64>(s, advance(q, at), advance(k, at), i + step > 0);
      }
    }
  }
  wgmma_commit();
}

// Sets the scores of keys that a row does not see to −∞. `visible` has the numbers of keys that the thread's
// rows see or, if the call has masks, the rows' queries.
template <bool kMasks>
__device__ __forceinline__ void mask(const DecodeArgs& args, const DecodePiece& piece, float (&s)[32],
                                     const int (&visible)[2], int first_key) {
  const int column = 2 * (static_cast<int>(threadIdx.x) % 4);
  if constexpr (kMasks) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint64_t seen = seen_by_query(args, piece.seq, visible[h], piece.num_keys - first_key) >> column;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& value = s[4 * j + 2 * h + c];
          value = (seen >> (8 * j + c) & 1) != 0 ? value : -INFINITY;
        }
      }
    }
  } else {
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
}

// Returns the largest scores of the thread's two rows over the thread's own columns.
__device__ __forceinline__ float2 largest(const float (&s)[32]) {
  float top[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {  // a tree, because a chain of maxima would expose its latency
    float tops[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) tops[j] = fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]);
#pragma unroll
    for (int count = 4; count > 0; count /= 2) {
#pragma unroll
      for (int j = 0; j < count; ++j) tops[j] = fmaxf(tops[j], tops[j + count]);
    }
    top[h] = tops[0];
  }
  return {top[0], top[1]};
}

// Renews `maximum` (of the thread's two rows) if a row's largest score exceeds it by more than the slack.
// Returns the factors for the earlier sums. Most pages renew no maximum. The four lanes of a row then need no
// shuffles, which would compete with the products for shared memory.
__device__ __forceinline__ float2 renew(float2 top, float (&maximum)[2], float scale_log2) {
  float own[2] = {top.x * scale_log2, top.y * scale_log2};
  const bool grows = own[0] > maximum[0] + kMaximumSlack || own[1] > maximum[1] + kMaximumSlack;
  if (!__any_sync(0xffffffffU, grows)) return {1.0F, 1.0F};
  float factors[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    own[h] = fmaxf(own[h], __shfl_xor_sync(0xffffffffU, own[h], 1));
    own[h] = fmaxf(own[h], __shfl_xor_sync(0xffffffffU, own[h], 2));
    const float renewed = own[h] > maximum[h] + kMaximumSlack ? own[h] : maximum[h];
    factors[h] = renewed == maximum[h] ? 1.0F : exp2_fast(maximum[h] - renewed);
    maximum[h] = renewed;
  }
  return {factors[0], factors[1]};
}

// Turns scores into weights, 2^(score · scale_log2 − maximum). It multiplies `sum` by `factors` and adds the
// row sums of the thread's columns.
__device__ __forceinline__ void make_weights(float (&s)[32], const float (&maximum)[2], float2 factors,
                                             float (&sum)[2], float scale_log2) {
  const float base[2] = {maximum[0] == -INFINITY ? 0.0F : maximum[0],
                         maximum[1] == -INFINITY ? 0.0F : maximum[1]};
  float added[2][2] = {};
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    s[i] = exp2_fast(fmaf(s[i], scale_log2, -base[i / 2 % 2]));
    added[i / 2 % 2][i % 2] += s[i];
  }
  sum[0] = sum[0] * factors.x + (added[0][0] + added[0][1]);
  sum[1] = sum[1] * factors.y + (added[1][0] + added[1][1]);
}

// Writes the row sums of the thread's warpgroup to `sums`, [kRows]; called in the last pair of a piece,
// before its hand-over. Left's sums lack the factor a₁.
__device__ __forceinline__ void publish_sums(const float (&sum)[2], float* sums, int own_row) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float total = sum[h] + __shfl_xor_sync(0xffffffffU, sum[h], 1);
    total += __shfl_xor_sync(0xffffffffU, total, 2);
    if (threadIdx.x % 4 == 0) sums[own_row + 8 * h] = total;
  }
}

// Rescales the accumulators. Factors are 1 unless a row's maximum has grown, so most pages of a long sequence
// skip the multiplications.
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

// Converts weights to operand A, four words for each 16 keys.
template <bool kF16>
__device__ __forceinline__ void pack(uint32_t (&a)[16], const float (&s)[32]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) a[i] = pack_two<std::conditional_t<kF16, f16, bf16>>(s[2 * i], s[2 * i + 1]);
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

// Adds P · V over a page to O, and does not wait for the products. P comes from registers (which must stay
// unchanged until the wait) or from a tile in shared memory. `values` is the first of four column tiles.
template <bool kF16>
__device__ __forceinline__ void add_values(float (&out)[128], const uint32_t (&a)[16],
                                           const std::byte* values) {
  const uint64_t v = wgmma_mn_major(values, kTileBytes);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint32_t words[4] = {a[4 * step], a[4 * step + 1], a[4 * step + 2], a[4 * step + 3]};
    if constexpr (kF16) {
      wgmma_f16_rs<256, true>(out, words, advance(v, step * 2048), true);
    } else {
      wgmma_bf16_rs<256, true>(out, words, advance(v, step * 2048), true);
    }
  }
  wgmma_commit();
}
template <bool kF16, int kBegin = 0, int kEnd = 4>
__device__ __forceinline__ void add_values(float (&out)[128], const std::byte* weights,
                                           const std::byte* values) {
  const uint64_t p = wgmma_k_major(weights);
  const uint64_t v = wgmma_mn_major(values, kTileBytes);
  wgmma_fence();
#pragma unroll
  for (int step = kBegin; step < kEnd; ++step) {
    if constexpr (kF16) {
      wgmma_f16<256, false, true>(out, advance(p, step * 32), advance(v, step * 2048), true);
    } else {
      wgmma_bf16<256, false, true>(out, advance(p, step * 32), advance(v, step * 2048), true);
    }
  }
  wgmma_commit();
}

// Synchronises left and right; both call it. `before` is the number of earlier calls at this barrier.
__device__ __forceinline__ void synchronise(Mbarrier* barrier, uint32_t before) {
  mbarrier_arrive(barrier);
  mbarrier_wait(barrier, before & 1U);
}

}  // namespace hadal::cuda::tiles
