// Holds the parts of mla/decode/fp8_products/kernel.cuh: shared memory, products, the conversion of scores to
// weights, and values.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/common/matrix.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/mla/decode/shared/newest.cuh"
#include "kernels/cuda/mla/decode/shared/partials.cuh"
#include "kernels/cuda/mla/decode/shared/pieces.cuh"

namespace hadal::cuda::fp8_decode {

constexpr int kRows = 64;
constexpr int kThreads = 384;
constexpr int kComputeThreads = 256;
constexpr int kTileBytes = kPageSize * 128;
constexpr int kLatentTiles = 4;
constexpr int kTiles = kLatentTiles + 1;  // plus the rope part
constexpr int kPageSlots = 4;
// Queries go through the ring if a block has no cluster, because it is then memory-bound. A cluster's blocks
// read queries from global memory and use the ring only for pages.
template <int kCluster>
constexpr bool kQueriesByRing = kCluster == 1;
constexpr int kScaleBytes = 16;  // bytes of a record's scales
constexpr float kWeightBits = 8.0F;
constexpr int kComputeRegisters = 240;
constexpr int kLoadRegisters = 24;

enum NamedBarrier { kCompute = 1, kSides };  // kSides + side: within a computing warpgroup

struct alignas(16) KeyFacts {  // scales of the keys of a page
  float scale[kPageSize];      // zero beyond the length, and if masks hide the record from all queries
  float bits;                  // log2 of the largest scale, rounded up
};

struct Shared {
  std::byte queries[kTiles * kTileBytes];
  std::byte pages[kPageSlots][kTiles * kTileBytes];
  std::byte weights[kTileBytes];  // weights of a pair of pages: [64 rows][2 × 64 keys]
  std::byte scales[kPageSlots][kPageSize * kScaleBytes];
  KeyFacts keys[kPageSlots];
  float row_scale[kRows];            // scales of the queries, multiplied by scale_log2
  float bound[2][kRows];             // upper bounds of score + log2(key scale) − 8 in each page of the pair
  float rescale[kRows];              // factor of the sums so far, before a pair is added
  alignas(16) uint32_t rescaled[4];  // nonzero: the factor of some row of the warp is not 1
  float sums[2][kRows];              // row sums of a piece, over the pages of each warpgroup
  float base[kRows];
  Mbarrier full[kPageSlots][2], ready[kPageSlots][2], empty[kPageSlots][2];
};
static_assert(sizeof(Shared) <= kMaxSharedBytes, "the shared memory of a block");

// Computes D[64, 64] (+)= A · B with 32 of k, A of e4m3 and B of e5m2.
__device__ __forceinline__ void wgmma_e4m3_e5m2(float (&d)[32], uint64_t a_desc, uint64_t b_desc,
                                                bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e5m2 {" HADAL_WGMMA_REGS_64 "}, %32, %33, p, 1, 1;\n}"
      : HADAL_WGMMA_OUT_64
      : "l"(a_desc), "l"(b_desc), "r"(static_cast<int32_t>(accumulate)));
}

template <bool kIsE4M3>
__device__ __forceinline__ void score_product(float (&d)[32], uint64_t q, uint64_t k, bool accumulate) {
  if constexpr (kIsE4M3) {
    wgmma_e4m3<64>(d, q, k, accumulate);
  } else {
    wgmma_e4m3_e5m2(d, q, k, accumulate);
  }
}
template <bool kIsE4M3>
__device__ __forceinline__ void value_product(float (&d)[32], const uint32_t (&v)[4], uint64_t p,
                                              bool accumulate) {
  if constexpr (kIsE4M3) {
    wgmma_e4m3_rs<64>(d, v, p, accumulate);
  } else {
    wgmma_e5m2_e4m3_rs<64>(d, v, p, accumulate);
  }
}

// Returns two floats as e4m3: `low` in the low byte.
__device__ __forceinline__ uint32_t pack_e4m3(float low, float high) {
  uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ uint32_t pack_e4m3(float v0, float v1, float v2, float v3) {
  return pack_e4m3(v0, v1) | pack_e4m3(v2, v3) << 16;
}

// Issues the products of scores over a tile of latents, and does not wait for them.
template <bool kIsE4M3>
__device__ __forceinline__ void add_latents(float (&d)[32], const std::byte* queries, const std::byte* page,
                                            int tile) {
  const uint64_t q = wgmma_k_major(queries + tile * kTileBytes);
  const uint64_t k = wgmma_k_major(page + tile * kTileBytes);
#pragma unroll
  for (int step = 0; step < 4; ++step)
    score_product<kIsE4M3>(d, wgmma_advance(q, step * 32), wgmma_advance(k, step * 32), step > 0);
}
// Issues the products of scores over the rope part, and does not wait for them.
template <bool kIsE4M3>
__device__ __forceinline__ void add_rope(float (&d)[32], const std::byte* queries, const std::byte* page) {
  const uint64_t q = wgmma_k_major(queries + kLatentTiles * kTileBytes);
  const uint64_t k = wgmma_k_major(page + kLatentTiles * kTileBytes);
#pragma unroll
  for (int step = 0; step < (kIsE4M3 ? 4 : 2); ++step) {
    if constexpr (kIsE4M3) {
      wgmma_bf16<64>(d, wgmma_advance(q, step * 32), wgmma_advance(k, step * 32), true);
    } else {
      score_product<false>(d, wgmma_advance(q, step * 32), wgmma_advance(k, step * 32), true);
    }
  }
}

struct RowState {  // a thread's two rows
  float base[2];
  float sum[2];    // sums over the thread's columns
  float scale[2];  // scales of scores
  int visible[2];  // numbers of visible keys or, if the call has masks, the rows' queries
};

// Loads the scales of the thread's columns: keys 8·j + column and the next one.
__device__ __forceinline__ void load_scales(float2 (&scales)[8], const KeyFacts& keys) {
  const int column = 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
  for (int j = 0; j < 8; ++j) scales[j] = *reinterpret_cast<const float2*>(keys.scale + 8 * j + column);
}

// Masks the scores; returns the largest of each of the thread's two rows.
template <bool kMasks>
__device__ __forceinline__ float2 mask_scores(const DecodeArgs& args, const DecodePiece& piece,
                                              float (&s)[32], const RowState& rows, int first_key,
                                              bool masked) {
  if (masked && kMasks) {
    const int column = 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint64_t seen =
          seen_by_query(args, piece.seq, rows.visible[h], piece.num_keys - first_key) >> column;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if ((seen >> (8 * j) & 1) == 0) s[4 * j + 2 * h] = -INFINITY;
        if ((seen >> (8 * j + 1) & 1) == 0) s[4 * j + 2 * h + 1] = -INFINITY;
      }
    }
  } else if (masked) {
    const int column = 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int limit = rows.visible[h] - first_key - column;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (8 * j >= limit) s[4 * j + 2 * h] = -INFINITY;
        if (8 * j + 1 >= limit) s[4 * j + 2 * h + 1] = -INFINITY;
      }
    }
  }
  float tops[2][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      tops[h][i] = fmaxf(fmaxf(s[8 * i + 2 * h], s[8 * i + 2 * h + 1]),
                         fmaxf(s[8 * i + 2 * h + 4], s[8 * i + 2 * h + 5]));
    }
  }
  float top[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) top[h] = fmaxf(fmaxf(tops[h][0], tops[h][1]), fmaxf(tops[h][2], tops[h][3]));
#pragma unroll
  for (int d = 1; d <= 2; d *= 2) {
    const float others[2] = {__shfl_xor_sync(0xffffffffU, top[0], d),
                             __shfl_xor_sync(0xffffffffU, top[1], d)};
    top[0] = fmaxf(top[0], others[0]);
    top[1] = fmaxf(top[1], others[1]);
  }
  return {top[0], top[1]};
}

// Raises the rows' bases where `bounds`, the bounds of the pair's weights, exceed them. Returns the factors
// for the earlier sums: 1, or less than 1 if the base has grown.
__device__ __forceinline__ float2 raise_bases(RowState& rows, float2 bounds) {
  float factors[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float bound = h == 0 ? bounds.x : bounds.y;
    const bool is_first = rows.base[h] == -INFINITY;
    const float growth = is_first ? 0.0F : fmaxf(ceilf(bound - rows.base[h]), 0.0F);
    rows.base[h] = is_first ? bound : rows.base[h] + growth;
    factors[h] = exp2_fast(-growth);
    rows.sum[h] *= factors[h];
  }
  return {factors[0], factors[1]};
}

// Zeroes the records of a page, and their scales, that masks hide from all queries of a sequence, and finds
// the largest scale again. It is called by the warpgroup that scores the page, before any thread of the block
// uses it.
template <bool kIsE4M3>
__device__ __forceinline__ void hide_records(const DecodeArgs& args, int seq, int valid, Shared& shared,
                                             uint32_t slot, uint32_t parity, int side) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const uint64_t seen = seen_by_any(args, seq, valid);
  for (int group = 0; group < 2; ++group) mbarrier_wait(&shared.ready[slot][group], parity);
#pragma unroll 1
  for (int i = thread; i < kPageSize * 8; i += 128) {
    if ((seen >> (i / 8) & 1) != 0) continue;
#pragma unroll 1
    for (int tile = 0; tile < kTiles; ++tile)
      *reinterpret_cast<uint4*>(shared.pages[slot] + tile * kTileBytes + i * 16) = make_uint4(0, 0, 0, 0);
  }
  if (kIsE4M3 && thread < 32) {
    KeyFacts& facts = shared.keys[slot];
    float top = 0.0F;
#pragma unroll 1
    for (int key = thread; key < kPageSize; key += 32) {
      if ((seen >> key & 1) == 0) facts.scale[key] = 0.0F;
      top = fmaxf(top, facts.scale[key]);
    }
    top = warp_max(top);
    if (thread == 0) facts.bits = ceilf(log2f(fmaxf(top, 0x1p-60F)));
  }
  fence_proxy_async_shared();
  named_barrier_sync(kSides + side, 128);
}

// Turns scores into weights. The weights without the keys' scales are added to the rows' sums.
template <bool kIsE4M3>
__device__ __forceinline__ void weigh(float (&s)[32], RowState& rows, const KeyFacts& keys) {
  const int column = 2 * (static_cast<int>(threadIdx.x) % 4);
  float subtract[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) subtract[h] = rows.base[h] == -INFINITY ? 0.0F : -rows.base[h];
  float sums[2][2] = {};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float& first = s[4 * j + 2 * h];
      float& second = s[4 * j + 2 * h + 1];
      first = exp2_fast(fmaf(first, rows.scale[h], subtract[h]));
      second = exp2_fast(fmaf(second, rows.scale[h], subtract[h]));
      sums[h][0] += first;
      sums[h][1] += second;
      if constexpr (kIsE4M3) {
        const float2 scale = *reinterpret_cast<const float2*>(keys.scale + 8 * j + column);
        first *= scale.x;
        second *= scale.y;
      }
    }
  }
  rows.sum[0] += sums[0][0] + sums[0][1];
  rows.sum[1] += sums[1][0] + sums[1][1];
}

// Stores the weights of a page in its half of the pair's tile.
__device__ __forceinline__ void store_weights(std::byte* tile, int half, const uint32_t (&words)[8]) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t row = warp * 16 + (lane / 8) % 2 * 8 + lane % 8;
#pragma unroll
  for (int group = 0; group < 4; group += 2) {
    store_matrix_x4(shared_address(tile) + swizzle_128(row, half * 4 + group + lane / 16), words[2 * group],
                    words[2 * group + 1], words[2 * group + 2], words[2 * group + 3]);
  }
}
__device__ __forceinline__ void pack_weights(uint32_t (&words)[8], const float (&s)[32]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {  // i = 2 · (group of 16 keys) + (row of the thread)
    const int j = i / 2 * 8 + i % 2 * 2;
    words[i] = pack_e4m3(s[j], s[j + 1], s[j + 4], s[j + 5]);
  }
}

// Computes the scores of a page, in float32 and without the rows' scales.
template <bool kIsE4M3>
__device__ __forceinline__ void make_scores(float (&s)[32], Shared& shared, uint32_t slot, uint32_t parity) {
  const std::byte* tiles = shared.pages[slot];
  // The offset is zero, which the compiler cannot infer. Otherwise the compiler would keep the descriptors of
  // all steps in registers, of which there are too few.
  const std::byte* queries = shared.queries + (slot >> 4);
  constexpr int kOrder[kLatentTiles] = {0, 2, 1, 3};
  float sum[32];  // over a tile
#pragma unroll
  for (int i = 0; i < kLatentTiles; ++i) {
    if (i % 2 == 0) mbarrier_wait(&shared.ready[slot][i / 2], parity);
    wgmma_fence();
    add_latents<kIsE4M3>(sum, queries, tiles, kOrder[i]);
    if (!kIsE4M3 && i == kLatentTiles - 1) add_rope<false>(sum, queries, tiles);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(sum);
#pragma unroll
    for (int k = 0; k < 32; ++k) s[k] = i == 0 ? sum[k] : s[k] + sum[k];
  }
  if constexpr (kIsE4M3) {
    float2 scales[8];
    load_scales(scales, shared.keys[slot]);
#pragma unroll
    for (int k = 0; k < 32; ++k) s[k] *= k % 2 == 0 ? scales[k / 4].x : scales[k / 4].y;
    wgmma_pin(s);
    wgmma_fence();
    add_rope<true>(s, queries, tiles);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(s);
  }
}

// Adds Vᵀ · Pᵀ over a pair of pages in two slots to `out`, and frees their tiles. `own` is the lane's byte
// offset in a page for the first of four m-tiles. If a pair has no second page, the second page's weights are
// zero and both slots are the same.
template <bool kIsE4M3, int kCluster>
__device__ __forceinline__ void add_values(float (&out)[4][32], const std::byte* weights, Shared& shared,
                                           uint32_t first_slot, uint32_t second_slot, uint32_t own,
                                           int lane) {
  const uint64_t p = wgmma_k_major(weights);
  const uint32_t first = shared_address(shared.pages[first_slot]);
  const uint32_t second = shared_address(shared.pages[second_slot]);
  float sum[32];
  uint32_t raw[4][4];
  const auto load = [&](int m) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      load_matrix_x4_transposed((step < 2 ? first : second) + m / 2 * kTileBytes +
                                    step % 2 * (kTileBytes / 2) + (own ^ (m % 2 << 6)),
                                raw[step]);
    }
  };
  load(0);
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    uint32_t a[4][4];
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      a[step][0] = __byte_perm(raw[step][0], raw[step][1], 0x6420);
      a[step][1] = __byte_perm(raw[step][0], raw[step][1], 0x7531);
      a[step][2] = __byte_perm(raw[step][2], raw[step][3], 0x6420);
      a[step][3] = __byte_perm(raw[step][2], raw[step][3], 0x7531);
    }
#pragma unroll
    for (int step = 0; step < 4; ++step) wgmma_pin(a[step]);
    if (m < 3) load(m + 1);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step)
      value_product<kIsE4M3>(sum, a[step], wgmma_advance(p, step * 32), step > 0);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int step = 0; step < 4; ++step) wgmma_pin(a[step]);
    wgmma_pin(sum);
#pragma unroll
    for (int i = 0; i < 32; ++i) out[m][i] += sum[i];
    if (m % 2 == 1) {
      mbarrier_arrive_cluster<kCluster>(&shared.empty[first_slot][m / 2], lane);
      if (second_slot != first_slot)
        mbarrier_arrive_cluster<kCluster>(&shared.empty[second_slot][m / 2], lane);
    }
  }
}

}  // namespace hadal::cuda::fp8_decode
