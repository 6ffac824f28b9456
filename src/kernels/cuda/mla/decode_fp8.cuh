// MLA decode over FP8 caches for many query rows (64 a tile), bound by the tensor cores: FP8 wgmma straight
// from the cache's codes (docs/kernels/cuda-mla-decode-fp8.md).
//
// Grid: num_parts × num_tiles persistent blocks, the tiles of a part next to each other; two of them are a
// cluster where there is an even number, and each loads half of every page for both. A block is four
// warpgroups that never wait for each other but through the barriers below:
// 0, 1 (values)  each half of the 512 output columns: Oᵀ[256 × 64] += Vᵀ · Pᵀ. FP8 wgmma takes K-major
//                operands alone, and V is stored the other way, so Vᵀ comes from registers: ldmatrix.trans
//                moves pairs of bytes, two byte permutations separate them, which leaves the pair's dims as
//                rows g and g + 8 of the operand and the keys in an order of their own (below). Each element
//                is transposed once a block.
// 2 (scores)     S = Q · Kᵀ of a page, softmax, and P to shared memory as operand B. A page's first half of
//                the products runs while the weights of the page before are made.
// 3 (loads)      warp 0: one thread issues the loads of pages; warp 1 readies a page that has arrived: its
//                scales, and zeros for records beyond the length, which may hold anything.
//
// Queries are quantised when a piece begins: one e4m3 a value, with a scale of a power of two a row. The rope
// part of e4m3 records is bf16: it is multiplied as bf16, divided by the row's scale (exact). A key's scale
// multiplies its score, and is folded into its weight: with t = score + log2(scale), weights are 2^(t − base)
// and the row sum adds 2^(t − base) / scale. A row's base is 8 below the largest t of the first page (whose
// weight, 256, is exact), and grows by whole numbers so that weights stay up to 256: what came before is then
// multiplied by powers of two, exact in e4m3.
//
// The tensor cores keep about 14 bits of FP8 sums. Scores are taken over into float32 after every 256 of k,
// values after every pair of pages (128 keys).
//
// Keys of P and V: of every 16, slot 4·c + i holds key 2·c + (i & 1) + 8·(i >> 1), which is how accumulators
// of scores lie in a thread, and how ldmatrix.trans delivers V.
//
// barrier            arrivals             guards                                       phase
// full[4]            1 + bytes            page in ring slot                            each page
// ready[4]           1 (warp 1)           its scales; records beyond the length        each page
// empty[4]           8 (values) × blocks  its slot                                     each page
// weights_full[2]    4 (scores)           P of a pair of pages, rescaling factors      each pair
// weights_empty[2]   8 (values)           their slot                                   each pair
// sums_full          4 (scores)           row sums and logarithms of a piece           each piece
// sums_empty         8 (values)           they may be written again                    each piece
// named 1: scores, 128 threads. named 2: values, 256 threads (merge).
//
// Registers of a thread: values 128 (output) + 32 (a pair's sum) + 16 (operand A) + addresses: 192. Scores
// 32 + 32 + the row's facts: 96. Loads 32.
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
constexpr int kThreads = 512;
constexpr int kValueThreads = 256;
constexpr int kTileBytes = kPageSize * 128;
constexpr int kLatentTiles = 4;
constexpr int kTiles = kLatentTiles + 1;  // and the rope part
constexpr int kPageSlots = 4;
constexpr int kScaleBytes = 16;  // of a record
constexpr float kWeightBits = 8.0F;
constexpr int kValueRegisters = 192;
constexpr int kScoreRegisters = 104;
constexpr int kLoadRegisters = 24;
constexpr bool kTwoLevels = false;

enum NamedBarrier { kWithinScores = 1, kWithinValues };

struct alignas(16) KeyFacts {  // of the keys of a page
  float scale[kPageSize];      // zero beyond the length
  float bits;                  // log2 of the largest, rounded up
};

struct Shared {
  std::byte queries[kTiles * kTileBytes];
  std::byte pages[kPageSlots][kTiles * kTileBytes];
  std::byte weights[2][kTileBytes];  // of a pair of pages: [64 rows][2 × 64 keys]; in the end, the merge's
  std::byte scales[kPageSlots][kPageSize * kScaleBytes];
  KeyFacts keys[kPageSlots];
  float row_scale[kRows];               // of the queries, · scale_log2
  float rescale[2][kRows];              // of the sums so far, before a pair is added
  alignas(16) uint32_t rescaled[2][4];  // not all of the warp's rows' factors are 1
  float inverse_sum[kRows];             // of a piece
  float lse[kRows];                     // base 2
  MergeNotes notes;
  Mbarrier full[kPageSlots], ready[kPageSlots], empty[kPageSlots];
  Mbarrier weights_full[2], weights_empty[2];
  Mbarrier sums_full, sums_empty;
};
static_assert(sizeof(Shared) <= 227 * 1024, "fits a multiprocessor");
static_assert(sizeof(MergeScratch) <= sizeof(Shared::weights));

// D[64, 64] (+)= A · B with 32 of k, A of e4m3 and B of e5m2.
__device__ __forceinline__ void wgmma_e4m3_e5m2(float (&d)[32], uint64_t a_desc, uint64_t b_desc,
                                                bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e5m2 {" HADAL_WGMMA_REGS_64 "}, %32, %33, p, 1, 1;\n}"
      : HADAL_WGMMA_OUT_64
      : "l"(a_desc), "l"(b_desc), "r"(static_cast<int32_t>(accumulate)));
}

// D = A · B with 16 of k, bf16. Unlike with wgmma_bf16, D has no value before: its registers are free until
// here.
__device__ __forceinline__ void wgmma_bf16_first(float (&d)[32], uint64_t a_desc, uint64_t b_desc) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" HADAL_WGMMA_REGS_64
      "}, %32, %33, p, 1, 1, 0, 0;\n}"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]),
        "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15]),
        "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]), "=f"(d[21]), "=f"(d[22]),
        "=f"(d[23]), "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]), "=f"(d[28]), "=f"(d[29]),
        "=f"(d[30]), "=f"(d[31])
      : "l"(a_desc), "l"(b_desc));
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

// ---- loads
// -------------------------------------------------------------------------------------------------

// Brings bytes into the L2: a multiple of 16.
__device__ __forceinline__ void prefetch(const void* from, int64_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(static_cast<uint32_t>(bytes))
               : "memory");
}

template <bool kIsE4M3, int kCluster>
__device__ __forceinline__ void load_page(Shared& shared, uint32_t slot, const CUtensorMap* pool,
                                          const CUtensorMap* scales, int32_t page) {
  constexpr int kRecords = kPageSize / kCluster;  // a block of a cluster loads these, for all
  constexpr int kRopeOffset = kIsE4M3 ? kKvFp8RopeOffset : kKvLatentDim;
  Mbarrier* barrier = &shared.full[slot];
  mbarrier_arrive_expect_tx(barrier, kTiles * kTileBytes + (kIsE4M3 ? kPageSize * kScaleBytes : 0));
  const int record = kCluster > 1 ? static_cast<int>(cluster_rank()) * kRecords : 0;
  const auto load = [&](std::byte* to, const CUtensorMap* map, int byte) {
    if constexpr (kCluster > 1) {
      tma_load_2d_multicast(to, map, barrier, byte, page * kPageSize + record, (1U << kCluster) - 1);
    } else {
      tma_load_2d(to, map, barrier, byte, page * kPageSize);
    }
  };
  std::byte* tiles = shared.pages[slot] + record * 128;
  for (int tile = 0; tile < kTiles; ++tile)
    load(tiles + tile * kTileBytes, pool, tile < kLatentTiles ? tile * 128 : kRopeOffset);
  if constexpr (kIsE4M3) load(shared.scales[slot] + record * kScaleBytes, scales, kKvFp8ScaleOffset);
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
    for (int page = piece.begin_page; page < piece.end_page; ++page) {
      if (!waited && page >= first_new) {
        pdl_wait();
        waited = true;
      }
      const int ahead = page + kPageSlots;
      const int32_t id = table[page];
      mbarrier_wait(&shared.empty[at.slot], at.producer_parity());
      load_page<kIsE4M3, kCluster>(shared, at.slot, pool, scales, id);
      // The blocks of a part share the prefetches.
      if (ahead < piece.end_page && ahead < first_new && ahead % args.num_tiles == tile)
        prefetch(args.pool + table[ahead] * args.page_stride, args.page_stride);
      at.advance();
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
      mbarrier_wait(&shared.full[at.slot], at.parity());
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
        if (lane == 0) facts.bits = ceilf(log2f(top));
      }
      if (valid < kPageSize) {
        std::byte* tiles = shared.pages[at.slot] + valid * 128;
        const int chunks = (kPageSize - valid) * 8;  // of a tile
        for (int tile = 0; tile < kTiles; ++tile) {
          for (int i = lane; i < chunks; i += 32)
            *reinterpret_cast<uint4*>(tiles + tile * kTileBytes + i * 16) = make_uint4(0, 0, 0, 0);
        }
        fence_proxy_async_shared();
      }
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&shared.ready[at.slot]);
      at.advance();
    }
  });
}

// ---- scores
// ------------------------------------------------------------------------------------------------

// Two floats as e4m3: `low` in the low byte.
__device__ __forceinline__ uint32_t pack_e4m3(float low, float high) {
  uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ uint32_t pack_e4m3(float v0, float v1, float v2, float v3) {
  return pack_e4m3(v0, v1) | pack_e4m3(v2, v3) << 16;
}

// The queries of a tile, from bf16 in global memory to e4m3 in shared memory, by the 128 threads of the
// warpgroup: eight lanes a row, four rows a warp at a time. Rows beyond the tile's are zeros.
template <bool kIsE4M3>
__device__ __forceinline__ void quantise_queries(const DecodeArgs& args, int seq, int first_row,
                                                 Shared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int chunk = lane % 8;
#pragma unroll 1
  for (int row = warp * 16 + lane / 8; row < warp * 16 + 16; row += 4) {
    const bool exists = first_row + row < args.rows;
    const auto* source =
        static_cast<const bf16*>(args.q) + (int64_t{seq} * args.rows + first_row + row) * kKvRowDim;
    uint4 values[kKvRowDim / 64];
#pragma unroll
    for (int i = 0; i < kKvRowDim / 64; ++i)
      values[i] = exists ? load_once(source + i * 64 + chunk * 8) : make_uint4(0, 0, 0, 0);
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
  named_barrier_sync(kWithinScores, 128);
}

// Scores over `tiles` of the latents (128 each), left in flight.
template <bool kIsE4M3, int kNumTiles>
__device__ __forceinline__ void add_latents(float (&d)[32], const std::byte* queries, const std::byte* page) {
  const uint64_t q = wgmma_k_major(queries);
  const uint64_t k = wgmma_k_major(page);
#pragma unroll
  for (int step = 0; step < 4 * kNumTiles; ++step) {
    const uint32_t at = step / 4 * kTileBytes + step % 4 * 32;
    score_product<kIsE4M3>(d, wgmma_advance(q, at), wgmma_advance(k, at), step > 0);
  }
}
// Scores over the rope part: e4m3 records to `s`, which starts from zero unless `accumulate`; e5m2 to `d`.
template <bool kIsE4M3>
__device__ __forceinline__ void add_rope(float (&s)[32], float (&d)[32], const std::byte* queries,
                                         const std::byte* page, bool accumulate) {
  const uint64_t q = wgmma_k_major(queries + kLatentTiles * kTileBytes);
  const uint64_t k = wgmma_k_major(page + kLatentTiles * kTileBytes);
  if constexpr (kIsE4M3) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      if (step == 0 && !accumulate) {
        wgmma_bf16_first(s, q, k);
      } else {
        wgmma_bf16<64>(s, wgmma_advance(q, step * 32), wgmma_advance(k, step * 32), true);
      }
    }
  } else {
#pragma unroll
    for (int step = 0; step < 2; ++step)
      score_product<false>(d, wgmma_advance(q, step * 32), wgmma_advance(k, step * 32), true);
  }
}

// Four e4m3 times a power of two up to 1.
__device__ __forceinline__ uint32_t scale_codes(uint32_t codes, float factor) {
  const __half2 factors = __float2half2_rn(factor);
  uint32_t result = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    __half2 values(__nv_cvt_fp8x2_to_halfraw2(static_cast<uint16_t>(codes >> (16 * half)), __NV_E4M3));
    values = __hmul2(values, factors);
    result |= static_cast<uint32_t>(__nv_cvt_halfraw2_to_fp8x2(values, __NV_SATFINITE, __NV_E4M3))
              << (16 * half);
  }
  return result;
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

// Sums of products to weights, and the row's state. Returns the factors that what came before is multiplied
// by: 1, or less where the base has grown.
template <bool kIsE4M3>
__device__ __forceinline__ float2 softmax(float (&s)[32], RowState& rows, const float2 (&scales)[8],
                                          float scale_bits, int first_key, bool masked) {
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
  float factors[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float tops[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      tops[i] = fmaxf(fmaxf(s[8 * i + 2 * h], s[8 * i + 2 * h + 1]),
                      fmaxf(s[8 * i + 2 * h + 4], s[8 * i + 2 * h + 5]));
    }
    float top = fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 2));
    const float least = top * rows.scale[h] + (scale_bits - kWeightBits);
    const bool is_first = rows.base[h] == -INFINITY;
    const float growth = is_first ? 0.0F : fmaxf(ceilf(least - rows.base[h]), 0.0F);
    rows.base[h] = is_first ? least : rows.base[h] + growth;
    factors[h] = exp2_fast(-growth);
    rows.sum[h] *= factors[h];
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float subtract = rows.base[h] == -INFINITY ? 0.0F : -rows.base[h];
    float sums[2] = {0.0F, 0.0F};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float& first = s[4 * j + 2 * h];
      float& second = s[4 * j + 2 * h + 1];
      first = exp2_fast(fmaf(first, rows.scale[h], subtract));
      second = exp2_fast(fmaf(second, rows.scale[h], subtract));
      sums[0] += first;
      sums[1] += second;
      if constexpr (kIsE4M3) {
        first *= scales[j].x;
        second *= scales[j].y;
      }
    }
    rows.sum[h] += sums[0] + sums[1];
  }
  return {factors[0], factors[1]};
}

// Weights of a page to half of a pair's tile.
__device__ __forceinline__ void store_weights(std::byte* tile, int half, const float (&s)[32]) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t row = warp * 16 + (lane / 8) % 2 * 8 + lane % 8;
  uint32_t words[8];  // 2 · (group of 16 keys) + row of the thread
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int j = i / 2 * 8 + i % 2 * 2;
    words[i] = pack_e4m3(s[j], s[j + 1], s[j + 4], s[j + 5]);
  }
#pragma unroll
  for (int group = 0; group < 4; group += 2) {
    store_matrix_x4(shared_address(tile) + swizzle_128(row, half * 4 + group + lane / 16), words[2 * group],
                    words[2 * group + 1], words[2 * group + 2], words[2 * group + 3]);
  }
}

// The first page's weights of a pair, whose base has grown since.
__device__ __forceinline__ void scale_weights(std::byte* tile, float2 factors) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      auto* word =
          reinterpret_cast<uint32_t*>(tile + swizzle_128(warp * 16 + 8 * h + lane / 4, group) + lane % 4 * 4);
      *word = scale_codes(*word, h == 0 ? factors.x : factors.y);
    }
  }
}

template <bool kIsE4M3>
__device__ __forceinline__ void make_weights(const DecodeArgs& args, int part, int first_row,
                                             Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int own_row = warp * 16 + lane / 4;  // and the one 8 further on
  const bool first_of_row = lane % 4 == 0;
  RingPosition<kPageSlots> at;
  RingPosition<2> pair;
  uint32_t pieces = 0;
  constexpr int kHalf = kLatentTiles / 2 * kTileBytes;

  for_each_piece(args, part, [&](const DecodePiece& piece) {
    RowState rows;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.base[h] = -INFINITY;
      rows.sum[h] = 0.0F;
      const int query = min((first_row + own_row + 8 * h) / args.num_heads, args.q_len - 1);
      rows.visible[h] = args.causal ? piece.num_keys - args.q_len + 1 + query : piece.num_keys;
    }
    if (piece.begin_page < piece.end_page) {
      named_barrier_sync(kWithinScores, 128);  // the last piece's queries are read no more
      quantise_queries<kIsE4M3>(args, piece.seq, first_row, shared);
      rows.scale[0] = shared.row_scale[own_row];
      rows.scale[1] = shared.row_scale[own_row + 8];
      // Products over latents: of the first half of k, or of all, of the next page while a page's weights are
      // made.
      float part_sum[32];
      float rope[32];  // products over the rope part, and what is left of scores when the page is made
      constexpr int kAhead = kTwoLevels ? 2 : kLatentTiles;
      mbarrier_wait(&shared.ready[at.slot], at.parity());
      wgmma_fence();
      add_latents<kIsE4M3, kAhead>(part_sum, shared.queries, shared.pages[at.slot]);
      if constexpr (!kTwoLevels)
        add_rope<kIsE4M3>(rope, part_sum, shared.queries, shared.pages[at.slot], false);
      wgmma_commit();
      float2 pair_factors = {1.0F, 1.0F};
#pragma unroll 1
      for (int page = piece.begin_page; page < piece.end_page; ++page) {
        const std::byte* tiles = shared.pages[at.slot];
        float2 scales[8];
        float scale_bits = 0.0F;
        if constexpr (kIsE4M3) {
          load_scales(scales, shared.keys[at.slot]);
          scale_bits = shared.keys[at.slot].bits;
        }
        wgmma_wait<0>();
        wgmma_pin(part_sum);
        if constexpr (kTwoLevels) {
#pragma unroll
          for (int i = 0; i < 32; ++i) {
            rope[i] = part_sum[i];
            if constexpr (kIsE4M3) rope[i] *= i % 2 == 0 ? scales[i / 4 % 8].x : scales[i / 4 % 8].y;
          }
          wgmma_pin(rope);
          wgmma_fence();
          add_latents<kIsE4M3, 2>(part_sum, shared.queries + kHalf, tiles + kHalf);
          add_rope<kIsE4M3>(rope, part_sum, shared.queries, tiles, true);
          wgmma_commit();
          wgmma_wait<0>();
          wgmma_pin(part_sum);
        }
        wgmma_pin(rope);
        float s[32];
#pragma unroll
        for (int i = 0; i < 32; ++i) {
          if constexpr (kIsE4M3) {
            s[i] = fmaf(part_sum[i], i % 2 == 0 ? scales[i / 4].x : scales[i / 4].y, rope[i]);
          } else {
            // A copy before part_sum goes on: the compiler would make it too late.
            asm volatile("mov.b32 %0, %1;" : "=f"(s[i]) : "f"(part_sum[i]));
          }
        }
        // The next page's; without a next page this one's again, to nobody's use.
        RingPosition<kPageSlots> next = at;
        if (page + 1 < piece.end_page) {
          next.advance();
          mbarrier_wait(&shared.ready[next.slot], next.parity());
        }
        // Zero, but the compiler would keep the descriptors of all steps, in registers that are not there.
        const std::byte* queries = shared.queries + (next.slot >> 4);
        wgmma_fence();
        add_latents<kIsE4M3, kAhead>(part_sum, queries, shared.pages[next.slot]);
        if constexpr (!kTwoLevels && !kIsE4M3)
          add_rope<false>(rope, part_sum, queries, shared.pages[next.slot], false);
        wgmma_commit();

        const bool masked = (page + 1) * kPageSize > piece.num_keys - (args.causal ? args.q_len - 1 : 0);
        const float2 factors = softmax<kIsE4M3>(s, rows, scales, scale_bits, page * kPageSize, masked);
        const bool second = (page - piece.begin_page) % 2 == 1;
        std::byte* weights = shared.weights[pair.slot];
        const bool grown = __any_sync(0xffffffffU, factors.x != 1.0F || factors.y != 1.0F);
        if (!second) {
          mbarrier_wait(&shared.weights_empty[pair.slot], pair.producer_parity());
          pair_factors = factors;
        } else {
          pair_factors = {pair_factors.x * factors.x, pair_factors.y * factors.y};
          if (grown) scale_weights(weights, factors);
        }
        store_weights(weights, second ? 1 : 0, s);
        if (second || page + 1 == piece.end_page) {
          if (first_of_row) {
            shared.rescale[pair.slot][own_row] = pair_factors.x;
            shared.rescale[pair.slot][own_row + 8] = pair_factors.y;
          }
          const bool any = __any_sync(0xffffffffU, pair_factors.x != 1.0F || pair_factors.y != 1.0F);
          if (lane == 0) shared.rescaled[pair.slot][warp] = any ? 1 : 0;
          fence_proxy_async_shared();
          __syncwarp();
          if (lane == 0) mbarrier_arrive(&shared.weights_full[pair.slot]);
          pair.advance();
        } else {
          __syncwarp();  // the second page may change what other lanes have stored
        }
        if constexpr (!kTwoLevels && kIsE4M3) {
          wgmma_fence();
          add_rope<true>(rope, part_sum, queries, shared.pages[next.slot], false);
          wgmma_commit();
        }
        at.advance();
      }
      wgmma_wait<0>();
      wgmma_pin(part_sum);
      wgmma_pin(rope);
    }

    mbarrier_wait(&shared.sums_empty, (pieces & 1U) ^ 1U);
    ++pieces;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float total = rows.sum[h];
      total += __shfl_xor_sync(0xffffffffU, total, 1);
      total += __shfl_xor_sync(0xffffffffU, total, 2);
      if (first_of_row) {
        shared.inverse_sum[own_row + 8 * h] = total > 0.0F ? 1.0F / total : 0.0F;
        shared.lse[own_row + 8 * h] = total > 0.0F ? rows.base[h] + log2f(total) : -INFINITY;
      }
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(&shared.sums_full);
  });
}

// ---- values
// ------------------------------------------------------------------------------------------------

__device__ __forceinline__ void load_matrix_x4_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// out += Vᵀ · Pᵀ over a pair of pages, or its only one. `first`, `second`: the pages' tiles, from the lane's
// place on; `own`: the lane's place in a tile's keys, for the first of four m-tiles.
template <bool kIsE4M3, int kPages>
__device__ __forceinline__ void add_values(float (&out)[4][32], const std::byte* weights, uint32_t first,
                                           uint32_t second, uint32_t own) {
  const uint64_t p = wgmma_k_major(weights);
  float sum[32];
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    uint32_t a[2 * kPages][4];
#pragma unroll
    for (int step = 0; step < 2 * kPages; ++step) {
      uint32_t raw[4];
      load_matrix_x4_transposed(raw, (step < 2 ? first : second) + step % 2 * 4096 + (own ^ (m << 4)));
      a[step][0] = __byte_perm(raw[0], raw[1], 0x6420);
      a[step][1] = __byte_perm(raw[0], raw[1], 0x7531);
      a[step][2] = __byte_perm(raw[2], raw[3], 0x6420);
      a[step][3] = __byte_perm(raw[2], raw[3], 0x7531);
    }
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 2 * kPages; ++step)
      value_product<kIsE4M3>(sum, a[step], wgmma_advance(p, step * 32), step > 0);
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int step = 0; step < 2 * kPages; ++step) wgmma_pin(a[step]);
    wgmma_pin(sum);
#pragma unroll
    for (int i = 0; i < 32; ++i) out[m][i] += sum[i];
  }
}

// Of one warp: it has read what the barrier guards. In a cluster the loads of all blocks wait for it.
template <int kCluster>
__device__ __forceinline__ void free_page(Mbarrier* barrier, int lane) {
  if constexpr (kCluster > 1) {
    if (lane < kCluster) mbarrier_arrive_remote(barrier, lane);
  } else {
    if (lane == 0) mbarrier_arrive(barrier);
  }
}

template <bool kIsE4M3, int kCluster>
__device__ __forceinline__ void sum_values(const DecodeArgs& args, int part, int first_row, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const int side = thread / 128;
  const int warp = thread / 32 % 4;
  const int lane = thread % 32;
  const int column = 2 * (lane % 4);
  const int first_dim = side * 256 + warp * 64;  // the warp's 64 dims, 16 in each m-tile
  const uint32_t own = static_cast<uint32_t>(first_dim / 128 * kTileBytes + lane * 128 +
                                             (((first_dim % 128 / 16) ^ (lane & 7)) << 4));
  RingPosition<kPageSlots> at;
  RingPosition<2> pair;
  uint32_t pieces = 0;

  for_each_piece(args, part, [&](const DecodePiece& piece) {
    float out[4][32];
#pragma unroll
    for (auto& tile : out) {
#pragma unroll
      for (float& value : tile) value = 0.0F;
    }
#pragma unroll 1
    for (int page = piece.begin_page; page < piece.end_page; page += 2) {
      mbarrier_wait(&shared.full[at.slot], at.parity());
      mbarrier_wait(&shared.weights_full[pair.slot], pair.parity());
      const uint4 rescaled = *reinterpret_cast<const uint4*>(shared.rescaled[pair.slot]);
      if ((rescaled.x | rescaled.y | rescaled.z | rescaled.w) != 0) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const float2 factors = *reinterpret_cast<const float2*>(shared.rescale[pair.slot] + 8 * j + column);
#pragma unroll
          for (auto& tile : out) {
            tile[4 * j] *= factors.x;
            tile[4 * j + 1] *= factors.y;
            tile[4 * j + 2] *= factors.x;
            tile[4 * j + 3] *= factors.y;
          }
        }
      }
      const uint32_t first = shared_address(shared.pages[at.slot]);
      Mbarrier* first_empty = &shared.empty[at.slot];
      at.advance();
      if (page + 1 < piece.end_page) {
        mbarrier_wait(&shared.full[at.slot], at.parity());
        const uint32_t second = shared_address(shared.pages[at.slot]);
        add_values<kIsE4M3, 2>(out, shared.weights[pair.slot], first, second, own);
        free_page<kCluster>(first_empty, lane);
        free_page<kCluster>(&shared.empty[at.slot], lane);
        at.advance();
      } else {
        add_values<kIsE4M3, 1>(out, shared.weights[pair.slot], first, 0, own);
        free_page<kCluster>(first_empty, lane);
      }
      if (lane == 0) mbarrier_arrive(&shared.weights_empty[pair.slot]);
      pair.advance();
    }

    mbarrier_wait(&shared.sums_full, pieces++ & 1U);
    const int64_t first_out = (piece.slot >= 0 ? int64_t{piece.slot} : int64_t{piece.seq}) * args.rows;
    if (thread < kRows && first_row + thread < args.rows) {
      const float lse = shared.lse[thread];
      if (piece.slot >= 0) {
        args.partial_lse[first_out + first_row + thread] = lse;
      } else if (args.lse != nullptr) {
        args.lse[first_out + first_row + thread] = lse * 0.6931471805599453F;
      }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 inverse = *reinterpret_cast<const float2*>(shared.inverse_sum + 8 * j + column);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int row = first_row + 8 * j + column + c;
        if (row >= args.rows) continue;
        const int64_t offset = (first_out + row) * kKvLatentDim + first_dim + lane / 4 * 2;
        const float factor = c == 0 ? inverse.x : inverse.y;
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const float even = out[m][4 * j + c] * factor;
          const float odd = out[m][4 * j + 2 + c] * factor;
          if (piece.slot >= 0) {
            *reinterpret_cast<float2*>(args.partial_out + offset + m * 16) = {even, odd};
          } else {
            *reinterpret_cast<uint32_t*>(static_cast<bf16*>(args.out) + offset + m * 16) =
                pack_bf16(even, odd);
          }
        }
      }
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(&shared.sums_empty);
    if (args.merge_inside && piece.slot >= 0) {
      finish_split<kValueThreads, kWithinValues>(args, piece, first_row / kRows, kRows, 0, 1, thread,
                                                 shared.notes);
    }
  });
  if (args.merge_inside) {
    merge_pending<bf16, kValueThreads, kWithinValues>(args, thread, shared.notes,
                                                      *reinterpret_cast<MergeScratch*>(shared.weights));
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
      mbarrier_init(&shared.full[slot], 1);
      mbarrier_init(&shared.ready[slot], 1);
      mbarrier_init(&shared.empty[slot], 8 * kCluster);
    }
    for (int slot = 0; slot < 2; ++slot) {
      mbarrier_init(&shared.weights_full[slot], 4);
      mbarrier_init(&shared.weights_empty[slot], 8);
    }
    mbarrier_init(&shared.sums_full, 4);
    mbarrier_init(&shared.sums_empty, 8);
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
    set_max_registers_up<kValueRegisters>();
    pdl_wait();
    pdl_launch_dependents();
    sum_values<kIsE4M3, kCluster>(args, part, tile * kRows, shared);
  } else if (warpgroup == 2) {
    set_max_registers_down<kScoreRegisters>();
    pdl_wait();
    make_weights<kIsE4M3>(args, part, tile * kRows, shared);
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
