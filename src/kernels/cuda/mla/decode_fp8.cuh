// MLA decode over FP8 caches for many query rows (64 a tile): FP8 wgmma straight from the cache's codes
// (docs/kernels/cuda-mla-decode-fp8.md).
//
// Grid: num_parts × num_tiles persistent blocks, the tiles of a part next to each other; two of them are a
// cluster where there is an even number, and each loads half of every page for both. Pages are taken in
// pairs. Warpgroups 0 and 1 each score one page of the pair and then multiply both pages' values for half of
// the 512 output columns:
//   S = Q · Kᵀ of the own page           64 rows × 64 keys, float32
//   bounds of the rows' weights       ──(1)──  exchanged
//   P to shared memory                ──(2)──  both halves of the pair's tile
//   Oᵀ[256 × 64] += Vᵀ · Pᵀ              of both pages
// FP8 wgmma takes K-major operands alone, and V is stored the other way, so Vᵀ comes from registers:
// ldmatrix.trans moves pairs of bytes, two byte permutations separate them, which leaves the pair's dims as
// rows g and g + 8 of the operand and the keys in an order of their own (below). Each element is transposed
// once a block. Warpgroup 2 loads: one thread of warp 0 issues the loads of pages; warp 1 readies a page that
// has arrived: its scales, and zeros for records beyond the length, which may hold anything.
//
// Queries are quantised when a piece begins: one e4m3 a value, with a scale of a power of two a row. The rope
// part of e4m3 records is bf16: it is multiplied as bf16, divided by the row's scale (exact). A key's scale
// multiplies its score and its weight: weights are 2^(score − base) · scale, the row sum adds 2^(score −
// base). A row's base keeps weights up to 256; it grows by whole numbers, so that what came before is
// multiplied by powers of two.
//
// The tensor cores keep about 14 bits of FP8 sums. Scores are taken over into float32 after every 128 of k,
// values after every pair of pages (128 keys).
//
// Keys of P and V: of every 16, slot 4·c + i holds key 2·c + (i & 1) + 8 · (i >> 1), which is how
// accumulators of scores lie in a thread, and how ldmatrix.trans delivers V.
//
// barrier          arrivals              guards                                          phase
// full[4][g]       1 + bytes             group g of the page in a ring slot              each page
// ready[4][g]      1 (warp 1)            its scales (g = 0); records beyond the length   each page
// empty[4][g]      8 (computing) ×       its place in the slot                           each page
//                  blocks
// named 1          256 (computing)       (1), (2), and where a piece begins and ends
// Group 0: tiles 0 and 2 of 128 latents, and scales; group 1: tiles 1 and 3, and the rope part.
//
// Registers of a computing thread: output 128, sums 32, scores 32 or operand A 16 and the next one's bytes
// 16; 240. Of a loading one 24.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/mla/decode_merge.cuh"
#include "kernels/cuda/mla/decode_pieces.cuh"

namespace hadal::cuda::fp8_decode {

constexpr int kRows = 64;
constexpr int kThreads = 384;
constexpr int kComputeThreads = 256;
constexpr int kTileBytes = kPageSize * 128;
constexpr int kLatentTiles = 4;
constexpr int kTiles = kLatentTiles + 1;  // and the rope part
constexpr int kPageSlots = 4;
constexpr int kScaleBytes = 16;  // of a record
constexpr float kWeightBits = 8.0F;
constexpr int kComputeRegisters = 240;
constexpr int kLoadRegisters = 24;

enum NamedBarrier { kCompute = 1 };

struct alignas(16) KeyFacts {  // of the keys of a page
  float scale[kPageSize];      // zero beyond the length
  float bits;                  // log2 of the largest, rounded up
};

struct Shared {
  std::byte queries[kTiles * kTileBytes];
  std::byte pages[kPageSlots][kTiles * kTileBytes];
  std::byte weights[kTileBytes];  // of a pair of pages: [64 rows][2 × 64 keys]
  std::byte scales[kPageSlots][kPageSize * kScaleBytes];
  KeyFacts keys[kPageSlots];
  MergeScratch merge;
  float row_scale[kRows];            // of the queries, · scale_log2
  float bound[2][kRows];             // on the logarithms of a page's weights, times scales
  float rescale[kRows];              // of the sums so far, before a pair is added
  alignas(16) uint32_t rescaled[4];  // not all of the warp's rows' factors are 1
  float sums[2][kRows];              // of a piece, over the pages of each warpgroup
  float base[kRows];
  MergeNotes notes;
  Mbarrier full[kPageSlots][2], ready[kPageSlots][2], empty[kPageSlots][2];
};
static_assert(sizeof(Shared) <= 227 * 1024, "fits a multiprocessor");

// D[64, 64] (+)= A · B with 32 of k, A of e4m3 and B of e5m2.
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

// Brings bytes into the L2: a multiple of 16.
__device__ __forceinline__ void prefetch(const void* from, int64_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(static_cast<uint32_t>(bytes))
               : "memory");
}

// A group of a page's tiles: 0 and 2, and the scales; or 1, 3 and the rope part.
template <bool kIsE4M3, int kCluster>
__device__ __forceinline__ void load_group(Shared& shared, uint32_t slot, int group, const CUtensorMap* pool,
                                           const CUtensorMap* scales, int32_t page) {
  constexpr int kRecords = kPageSize / kCluster;  // a block of a cluster loads these, for all
  constexpr int kRopeOffset = kIsE4M3 ? kKvFp8RopeOffset : kKvLatentDim;
  Mbarrier* barrier = &shared.full[slot][group];
  mbarrier_arrive_expect_tx(barrier, 2 * kTileBytes + (group == 1 ? kTileBytes
                                                       : kIsE4M3  ? kPageSize * kScaleBytes
                                                                  : 0));
  const int record = kCluster > 1 ? static_cast<int>(cluster_rank()) * kRecords : 0;
  const auto load = [&](std::byte* to, const CUtensorMap* map, int byte) {
    if constexpr (kCluster > 1) {
      tma_load_2d_multicast(to, map, barrier, byte, page * kPageSize + record, (1U << kCluster) - 1);
    } else {
      tma_load_2d(to, map, barrier, byte, page * kPageSize);
    }
  };
  std::byte* tiles = shared.pages[slot] + record * 128;
  if (kIsE4M3 && group == 0) load(shared.scales[slot] + record * kScaleBytes, scales, kKvFp8ScaleOffset);
  for (int tile = group; tile < kLatentTiles; tile += 2) load(tiles + tile * kTileBytes, pool, tile * 128);
  if (group == 1) load(tiles + kLatentTiles * kTileBytes, pool, kRopeOffset);
}

// By one thread.
template <bool kIsE4M3, int kCluster>
__device__ __forceinline__ void load_pages(const DecodeArgs& args, const CUtensorMap* pool,
                                           const CUtensorMap* scales, int part, int tile, Shared& shared) {
  RingPosition<kPageSlots> at;
  bool waited = !args.settled;  // for the kernel before
  for_each_piece(args, part, [&](const DecodePiece& piece) {
    const int32_t* table = args.page_table + args.seq_idx[piece.seq] * args.page_table_stride;
    const int first_new = (piece.num_keys - args.q_len) / kPageSize;  // page of the first new record
    const int64_t first_query = int64_t{piece.seq} * args.rows + tile * kRows;
    if (waited && piece.begin_page < piece.end_page) {
      prefetch(static_cast<const bf16*>(args.q) + first_query * kKvRowDim,
               min(kRows, args.rows - tile * kRows) * kKvRowDim * int64_t{sizeof(bf16)});
    }
    for (int page = piece.begin_page; page < piece.end_page; page += 2) {
      const bool second = page + 1 < piece.end_page;
      if (!waited && page + 1 >= first_new) {
        pdl_wait();
        waited = true;
      }
      const int32_t first_id = table[page];
      const int32_t second_id = second ? table[page + 1] : 0;
      // The blocks of a part share the prefetches. They wait for a page's number, so before the slots' turn.
      for (int ahead = page + kPageSlots; ahead < page + kPageSlots + 2; ++ahead) {
        if (ahead < piece.end_page && ahead < first_new && ahead % args.num_tiles == tile)
          prefetch(args.pool + table[ahead] * args.page_stride, args.page_stride);
      }
      RingPosition<kPageSlots> next = at;
      next.advance();
#pragma unroll 1
      for (int group = 0; group < 2; ++group) {  // as the values free them
        mbarrier_wait(&shared.empty[at.slot][group], at.producer_parity());
        load_group<kIsE4M3, kCluster>(shared, at.slot, group, pool, scales, first_id);
        if (second) {
          mbarrier_wait(&shared.empty[next.slot][group], next.producer_parity());
          load_group<kIsE4M3, kCluster>(shared, next.slot, group, pool, scales, second_id);
        }
      }
      at = next;
      if (second) at.advance();
    }
  });
}

// By one warp.
template <bool kIsE4M3>
__device__ __forceinline__ void ready_pages(const DecodeArgs& args, int part, Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  RingPosition<kPageSlots> at;
  for_each_piece(args, part, [&](const DecodePiece& piece) {
    for (int page = piece.begin_page; page < piece.end_page; ++page) {
      const int valid = piece.num_keys - page * kPageSize;
      const auto zero_tail = [&](int tile) {
        std::byte* records = shared.pages[at.slot] + tile * kTileBytes + valid * 128;
        for (int i = lane; i < (kPageSize - valid) * 8; i += 32)
          *reinterpret_cast<uint4*>(records + i * 16) = make_uint4(0, 0, 0, 0);
      };
      mbarrier_wait(&shared.full[at.slot][0], at.parity());
      if constexpr (kIsE4M3) {
        KeyFacts& facts = shared.keys[at.slot];
        float top = 0.0F;
#pragma unroll
        for (int key = lane; key < kPageSize; key += 32) {
          float scale = *reinterpret_cast<const float*>(shared.scales[at.slot] + key * kScaleBytes);
          if (key >= valid) scale = 0.0F;
          facts.scale[key] = scale;
          top = fmaxf(top, scale);
        }
        top = warp_max(top);
        if (lane == 0)
          facts.bits = ceilf(log2f(fmaxf(top, 0x1p-60F)));  // a page of zero scales has a base too
      }
#pragma unroll 1
      for (int group = 0; group < 2; ++group) {
        if (group == 1) mbarrier_wait(&shared.full[at.slot][1], at.parity());
        if (valid < kPageSize) {
          for (int tile = group; tile < kTiles - 1 + group; tile += 2) zero_tail(tile);
          if (group == 1) zero_tail(kLatentTiles);
          fence_proxy_async_shared();
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(&shared.ready[at.slot][group]);
      }
      at.advance();
    }
  });
}

// Two floats as e4m3: `low` in the low byte.
__device__ __forceinline__ uint32_t pack_e4m3(float low, float high) {
  uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ uint32_t pack_e4m3(float v0, float v1, float v2, float v3) {
  return pack_e4m3(v0, v1) | pack_e4m3(v2, v3) << 16;
}

// The queries of a tile, from bf16 in global memory to e4m3 in shared memory, by the computing
// threads: eight lanes a row, four rows a warp at a time. Rows beyond the tile's are zeros.
template <bool kIsE4M3>
__device__ __forceinline__ void quantise_queries(const DecodeArgs& args, int seq, int first_row,
                                                 Shared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int chunk = lane % 8;
  constexpr int kLoads = kKvRowDim / 64;
  uint4 loaded[2][kLoads];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 8 + half * 4 + lane / 8;
    const auto* source =
        static_cast<const bf16*>(args.q) + (int64_t{seq} * args.rows + first_row + row) * kKvRowDim;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      loaded[half][i] =
          first_row + row < args.rows ? load_once(source + i * 64 + chunk * 8) : make_uint4(0, 0, 0, 0);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 8 + half * 4 + lane / 8;
    const uint4(&values)[kLoads] = loaded[half];
    float amax = 0.0F;
#pragma unroll
    for (int i = 0; i < (kIsE4M3 ? kKvLatentDim : kKvRowDim) / 64; ++i) {
      const uint32_t words[4] = {values[i].x, values[i].y, values[i].z, values[i].w};
#pragma unroll
      for (const uint32_t word : words) {
        const float2 v = unpack_bf16(word);
        amax = fmaxf(amax, fmaxf(fabsf(v.x), fabsf(v.y)));
      }
    }
#pragma unroll
    for (int d = 4; d > 0; d /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffU, amax, d));
    const float scale = group_scale(amax, true);
    const float inverse = 1.0F / scale;
    if (chunk == 0) shared.row_scale[row] = scale * args.scale_log2;
#pragma unroll
    for (int i = 0; i < kKvRowDim / 64; ++i) {
      const uint32_t words[4] = {values[i].x, values[i].y, values[i].z, values[i].w};
      float2 v[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        v[w] = unpack_bf16(words[w]);
        v[w] = {v[w].x * inverse, v[w].y * inverse};
      }
      if (kIsE4M3 && i == kKvLatentDim / 64) {
        *reinterpret_cast<uint4*>(shared.queries + kLatentTiles * kTileBytes + swizzle_128(row, chunk)) =
            make_uint4(pack_bf16(v[0].x, v[0].y), pack_bf16(v[1].x, v[1].y), pack_bf16(v[2].x, v[2].y),
                       pack_bf16(v[3].x, v[3].y));
      } else {  // 64 codes: half of a tile's row
        *reinterpret_cast<uint2*>(shared.queries + i / 2 * kTileBytes +
                                  swizzle_128(row, i % 2 * 4 + chunk / 2) + chunk % 2 * 8) =
            make_uint2(pack_e4m3(v[0].x, v[0].y, v[1].x, v[1].y), pack_e4m3(v[2].x, v[2].y, v[3].x, v[3].y));
      }
    }
  }
  fence_proxy_async_shared();
  named_barrier_sync(kCompute, kComputeThreads);
}

// Scores over a tile of latents, left in flight.
template <bool kIsE4M3>
__device__ __forceinline__ void add_latents(float (&d)[32], const std::byte* queries, const std::byte* page,
                                            int tile) {
  const uint64_t q = wgmma_k_major(queries + tile * kTileBytes);
  const uint64_t k = wgmma_k_major(page + tile * kTileBytes);
#pragma unroll
  for (int step = 0; step < 4; ++step)
    score_product<kIsE4M3>(d, wgmma_advance(q, step * 32), wgmma_advance(k, step * 32), step > 0);
}
// Scores over the rope part.
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

struct RowState {  // of a thread's two rows
  float base[2];
  float sum[2];    // over the thread's columns
  float scale[2];  // of scores
  int visible[2];  // keys
};

// Of the thread's columns: keys 8·j + column and the next one.
__device__ __forceinline__ void load_scales(float2 (&scales)[8], const KeyFacts& keys) {
  const int column = 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
  for (int j = 0; j < 8; ++j) scales[j] = *reinterpret_cast<const float2*>(keys.scale + 8 * j + column);
}

// The largest of each of the thread's two rows, after masking.
__device__ __forceinline__ float2 mask_scores(float (&s)[32], const RowState& rows, int first_key,
                                              bool masked) {
  if (masked) {
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

// The rows' bases when the pair's weights are bounded by `bounds`. Returns the factors that what came before
// is multiplied by: 1, or less where the base has grown.
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

// Scores to weights; their sums, without the keys' scales, are added to the rows'.
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

// Weights of a page to half of a pair's tile.
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
  for (int i = 0; i < 8; ++i) {  // 2 · (group of 16 keys) + row of the thread
    const int j = i / 2 * 8 + i % 2 * 2;
    words[i] = pack_e4m3(s[j], s[j + 1], s[j + 4], s[j + 5]);
  }
}

// Scores of a page, in float32 and without the rows' scales.
template <bool kIsE4M3>
__device__ __forceinline__ void make_scores(float (&s)[32], Shared& shared, uint32_t slot, uint32_t parity) {
  const std::byte* tiles = shared.pages[slot];
  // Zero, but the compiler would keep the descriptors of all steps, in registers that are not there.
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

__device__ __forceinline__ void load_matrix_x4_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Of one warp: it has read what the barrier guards. In a cluster the loads of all blocks wait for it.
template <int kCluster>
__device__ __forceinline__ void free_group(Mbarrier* barrier, int lane) {
  if constexpr (kCluster > 1) {
    if (lane < kCluster) mbarrier_arrive_remote(barrier, lane);
  } else {
    if (lane == 0) mbarrier_arrive(barrier);
  }
}

// out += Vᵀ · Pᵀ over a pair of pages in two slots; frees their tiles. `own`: the lane's place in a page for
// the first of four m-tiles. A pair without its second page has zero weights there, and twice the same slot.
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
      load_matrix_x4_transposed(raw[step], (step < 2 ? first : second) + m / 2 * kTileBytes +
                                               step % 2 * (kTileBytes / 2) + (own ^ (m % 2 << 6)));
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
      free_group<kCluster>(&shared.empty[first_slot][m / 2], lane);
      if (second_slot != first_slot) free_group<kCluster>(&shared.empty[second_slot][m / 2], lane);
    }
  }
}

template <bool kIsE4M3, int kCluster>
__device__ __forceinline__ void attend(const DecodeArgs& args, int part, int first_row, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const int side = thread / 128;
  const int warp = thread / 32 % 4;
  const int lane = thread % 32;
  const int own_row = warp * 16 + lane / 4;  // of scores, and the one 8 further on
  const bool first_of_row = lane % 4 == 0;
  const int column = 2 * (lane % 4);
  // The warp's 16 dims of m-tile m begin at first_dim + 64 · m: tiles 2 · side and 2 · side + 1, two m-tiles
  // each.
  const int first_dim = side * 256 + warp * 16;
  const uint32_t own = static_cast<uint32_t>(side * 2 * kTileBytes + lane * 128 + ((warp ^ (lane & 7)) << 4));
  RingPosition<kPageSlots> at;

  for_each_piece(args, part, [&](const DecodePiece& piece) {
    RowState rows;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.base[h] = -INFINITY;
      rows.sum[h] = 0.0F;
      const int query = min((first_row + own_row + 8 * h) / args.num_heads, args.q_len - 1);
      rows.visible[h] = args.causal ? piece.num_keys - args.q_len + 1 + query : piece.num_keys;
    }
    float out[4][32];
#pragma unroll
    for (auto& tile : out) {
#pragma unroll
      for (float& value : tile) value = 0.0F;
    }
    named_barrier_sync(kCompute, kComputeThreads);  // the last piece's queries and sums are read no more
    if (piece.begin_page < piece.end_page) {
      quantise_queries<kIsE4M3>(args, piece.seq, first_row, shared);
      rows.scale[0] = shared.row_scale[own_row];
      rows.scale[1] = shared.row_scale[own_row + 8];
    }
#pragma unroll 1
    for (int page = piece.begin_page; page < piece.end_page; page += 2) {
      const bool second = page + 1 < piece.end_page;
      RingPosition<kPageSlots> next = at;
      next.advance();
      float s[32];
      float2 bounds = {-INFINITY, -INFINITY};
      const uint32_t slot =
          __shfl_sync(0xffffffffU, side == 0 || !second ? at.slot : next.slot, 0);  // uniform
      if (side == 0 || second) {
        make_scores<kIsE4M3>(s, shared, slot, side == 0 ? at.phase : next.phase);
        const int end = (page + side + 1) * kPageSize;
        const bool masked = end > piece.num_keys - (args.causal ? args.q_len - 1 : 0);
        const float2 tops = mask_scores(s, rows, end - kPageSize, masked);
        const float bits = (kIsE4M3 ? shared.keys[slot].bits : 0.0F) - kWeightBits;
        bounds = {tops.x * rows.scale[0] + bits, tops.y * rows.scale[1] + bits};
      } else {  // no second page: its weights are zeros
#pragma unroll
        for (float& value : s) value = -INFINITY;
      }
      if (first_of_row) {
        shared.bound[side][own_row] = bounds.x;
        shared.bound[side][own_row + 8] = bounds.y;
      }
      named_barrier_sync(kCompute, kComputeThreads);  // bounds are there; the last pair's weights are read
      bounds = {fmaxf(bounds.x, shared.bound[1 - side][own_row]),
                fmaxf(bounds.y, shared.bound[1 - side][own_row + 8])};
      const float2 factors = raise_bases(rows, bounds);
      if (side == 0) {
        const bool grown = __any_sync(0xffffffffU, factors.x != 1.0F || factors.y != 1.0F);
        if (lane == 0) shared.rescaled[warp] = grown ? 1 : 0;
        if (grown && first_of_row) {
          shared.rescale[own_row] = factors.x;
          shared.rescale[own_row + 8] = factors.y;
        }
        if (!grown && first_of_row) {
          shared.rescale[own_row] = 1.0F;
          shared.rescale[own_row + 8] = 1.0F;
        }
      }
      weigh<kIsE4M3>(s, rows, shared.keys[slot]);
      uint32_t words[8];
      pack_weights(words, s);
      store_weights(shared.weights, side, words);
      fence_proxy_async_shared();
      named_barrier_sync(kCompute, kComputeThreads);  // weights and factors are there
      const uint4 rescaled = *reinterpret_cast<const uint4*>(shared.rescaled);
      if ((rescaled.x | rescaled.y | rescaled.z | rescaled.w) != 0) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float2 by = *reinterpret_cast<const float2*>(shared.rescale + 8 * j + column);
#pragma unroll
          for (auto& tile : out) {
            tile[4 * j] *= by.x;
            tile[4 * j + 1] *= by.y;
            tile[4 * j + 2] *= by.x;
            tile[4 * j + 3] *= by.y;
          }
        }
      }
      add_values<kIsE4M3, kCluster>(out, shared.weights, shared, at.slot, second ? next.slot : at.slot, own,
                                    lane);
      at = next;
      if (second) at.advance();
    }

#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float total = rows.sum[h];
      total += __shfl_xor_sync(0xffffffffU, total, 1);
      total += __shfl_xor_sync(0xffffffffU, total, 2);
      if (first_of_row) {
        shared.sums[side][own_row + 8 * h] = total;
        if (side == 0) shared.base[own_row + 8 * h] = rows.base[h];
      }
    }
    named_barrier_sync(kCompute, kComputeThreads);
    const int64_t first_out = (piece.slot >= 0 ? int64_t{piece.slot} : int64_t{piece.seq}) * args.rows;
    if (thread < kRows && first_row + thread < args.rows) {
      const float total = shared.sums[0][thread] + shared.sums[1][thread];
      const float lse = total > 0.0F ? shared.base[thread] + log2f(total) : -INFINITY;
      if (piece.slot >= 0) {
        args.partial_lse[first_out + first_row + thread] = lse;
      } else if (args.lse != nullptr) {
        args.lse[first_out + first_row + thread] = lse * 0.6931471805599453F;
      }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int own_column = 8 * j + column + c;
        const int row = first_row + own_column;
        if (row >= args.rows) continue;
        const float total = shared.sums[0][own_column] + shared.sums[1][own_column];
        const float factor = total > 0.0F ? 1.0F / total : 0.0F;
        const int64_t offset = (first_out + row) * kKvLatentDim + first_dim + lane / 4 * 2;
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const float even = out[m][4 * j + c] * factor;
          const float odd = out[m][4 * j + 2 + c] * factor;
          if (piece.slot >= 0) {
            *reinterpret_cast<float2*>(args.partial_out + offset + m * 64) = {even, odd};
          } else {
            *reinterpret_cast<uint32_t*>(static_cast<bf16*>(args.out) + offset + m * 64) =
                pack_bf16(even, odd);
          }
        }
      }
    }
    if (args.merge_inside && piece.slot >= 0) {
      finish_split<kComputeThreads, kCompute>(args, piece, first_row / kRows, kRows, 0, 1, thread,
                                              shared.notes);
    }
  });
  if (args.merge_inside) {
    merge_pending<bf16, kComputeThreads, kCompute>(args, thread, shared.notes, shared.merge);
  }
}

template <bool kIsE4M3, int kCluster>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    mla_decode_fp8_kernel(const __grid_constant__ DecodeArgs args, const __grid_constant__ CUtensorMap pool,
                          const __grid_constant__ CUtensorMap scales) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const int part = static_cast<int>(blockIdx.x) / args.num_tiles;
  const int tile = static_cast<int>(blockIdx.x) % args.num_tiles;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kPageSlots; ++slot) {
      for (int group = 0; group < 2; ++group) {
        mbarrier_init(&shared.full[slot][group], 1);
        mbarrier_init(&shared.ready[slot][group], 1);
        mbarrier_init(&shared.empty[slot][group], 8 * kCluster);
      }
    }
    mbarrier_init_fence();
    shared.notes.count = 0;
    tma_prefetch_map(&pool);
    if (kIsE4M3) tma_prefetch_map(&scales);
  }
  __syncthreads();
  if constexpr (kCluster > 1) cluster_sync();
  if (!args.settled) pdl_wait();
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup < 2) {
    set_max_registers_up<kComputeRegisters>();
    pdl_wait();
    pdl_launch_dependents();
    attend<kIsE4M3, kCluster>(args, part, tile * kRows, shared);
  } else {
    set_max_registers_down<kLoadRegisters>();
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    if (warp == 0) {
      if (threadIdx.x % 32 == 0) load_pages<kIsE4M3, kCluster>(args, &pool, &scales, part, tile, shared);
    } else if (warp == 1) {
      ready_pages<kIsE4M3>(args, part, shared);
    }
  }
  if constexpr (kCluster > 1) {
    __syncwarp();
    cluster_sync();  // the other block may still arrive at barriers here
  }
}

template <bool kIsE4M3, int kCluster>
void launch_fp8(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  constexpr int kRowBytes = kIsE4M3 ? kKvRowBytesFp8E4M3 : kKvRowBytesFp8E5M2;
  constexpr int kRecords = kPageSize / kCluster;
  const CUtensorMap pool =
      make_tensor_map<2>(args.pool, {kRowBytes, int64_t{1} << 31}, {kRowBytes}, {128, kRecords});
  CUtensorMap scales = pool;
  if (kIsE4M3) {
    scales = make_tensor_map<2>(args.pool, {kRowBytes, int64_t{1} << 31}, {kRowBytes},
                                {kScaleBytes, kRecords}, CU_TENSOR_MAP_SWIZZLE_NONE);
  }
  const dim3 grid(static_cast<unsigned>(geometry.num_parts * geometry.num_tiles));
  launch_kernel<mla_decode_fp8_kernel<kIsE4M3, kCluster>>(launch, grid, dim3(kThreads), sizeof(Shared), args,
                                                          pool, scales);
}

template <bool kIsE4M3>
void launch_fp8(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  if (geometry.num_tiles % 2 == 0) {
    launch_fp8<kIsE4M3, 2>(args, geometry, launch);
  } else {
    launch_fp8<kIsE4M3, 1>(args, geometry, launch);
  }
}

}  // namespace hadal::cuda::fp8_decode
