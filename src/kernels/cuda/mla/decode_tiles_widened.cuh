// MLA decode for many query rows (64 a tile), bound by the tensor cores: wgmma over whole pages.
//
// Grid: num_parts × num_tiles persistent blocks of three warpgroups, the tiles of a part next to each other,
// for they read the same pages: with bf16 caches, two of them are a cluster, and each loads half of every
// tile for both. Warpgroup 2 loads (bf16: one thread, tensor maps; FP8: all 128 threads widen codes to
// float16, the scale multiplied in, and everything downstream is float16, which keeps 11 bits where bf16
// keeps 8); warpgroups 0
// ("left") and 1 ("right") compute. Pages are taken in pairs: the first of a pair is scored by left, the
// second by right, and each warpgroup keeps half of the output's columns (left 0…255, right 256…511), so each
// needs the other's weights:
//   left                                             right
//   S = Q·K₀ᵀ                                        S = Q·K₁ᵀ
//   m₀ = max(m, S), P₀, a₀ = 2^(m−m₀)  ──(1)──►      m₁ = max(m₀, S), P₁, a₁ = 2^(m₀−m₁)
//   O = a₀·O + P₀·V₀ left               ◄──(2)──     (P₁ into the rope tile of K₁, which is read no more)
//   P₀·a₁ into `weights`               ──(3)──►      O = a₀·a₁·O + P₁·V₁ right
//   O = a₁·O + P₁·V₁ left                            O += P₀·a₁·V₀ right
// The last pair of a piece may lack its second page: right then only rescales, and adds P₀·V₀.
//
// A page is nine tiles of 64 keys × 64 columns (128-byte swizzle, 8 KB; tile 8 is the rope part), loaded and
// freed in two groups. Records beyond the length may hold anything: with bf16 the page's scorer zeroes them
// before use, with FP8 the loading warpgroup writes zeros. The next pair is brought into the L2 meanwhile.
//
// barrier         arrivals              guards                                         phase
// q_full          1 + bytes             the queries of a piece                         pieces with pages
// q_empty         8 (compute warps)     their last scores are made                     pieces with pages
// full[p][g]      1 + bytes; FP8: 4     group g of page p of a pair                    pairs that have page p
// empty[0][0]     4 (left)  × blocks    tiles 0…3, 8 of the first page                 "
// empty[0][1]     4 (right) of the      tiles 4…7 of the first page                    "
// empty[1][0]     4 (right) cluster     tiles 4…7 of the second page                   "
// empty[1][1]     4 (left)              tiles 0…3, 8 (now P₁) of the second page       "
// first_scored    128 (left)            hand-over (1)                                  each pair
// second_scored   128 (right)           hand-over (2)                                  each pair
// first_weights   128 (left)            hand-over (3)                                  each pair
// sums_written    256                   row sums of both sides                         each piece
// sums_read       256                   they may be written again                      each piece
// q_widened       256                   FP8: the queries are float16                   pieces with pages
// named 1, 2      128                   within left; within right
//
// Registers: output 128, scores 32, weights 16 + 16; 232 of a compute thread and 40 of a loading one, with
// FP8 208 and 88.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/mla/decode_pieces.cuh"

namespace hadal::cuda::widened {

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
  float sums[2][kRows];
  Mbarrier q_full, q_empty;
  Mbarrier full[2][2], empty[2][2];
  Mbarrier first_weights, second_weights;       // hand-overs between left and right
  Mbarrier sums_written, sums_read, q_widened;  // where both meet
};
constexpr size_t kSharedBytes = (sizeof(Shared) + 1023) / 1024 * 1024;
static_assert(kSharedBytes <= 227 * 1024, "fits a multiprocessor");

// Four column tiles of a page from `first` on, and the rope tile. A cluster's blocks load half of the records
// each, for both.
template <int kCluster>
__device__ __forceinline__ void load_tiles(Shared& shared, const CUtensorMap* pool, int page_of_pair,
                                           int group, int first, bool rope, int32_t page) {
  constexpr int kRecords = kPageSize / kCluster;
  Mbarrier* barrier = &shared.full[page_of_pair][group];
  mbarrier_arrive_expect_tx(barrier, (rope ? kHalfTiles + 1 : kHalfTiles) * kTileBytes);
  const int record = kCluster > 1 ? static_cast<int>(cluster_rank()) * kRecords : 0;
  std::byte* tiles = shared.keys[page_of_pair] + record * 128;
  const auto load = [&](int tile) {
    if constexpr (kCluster > 1) {
      tma_load_3d_multicast(tiles + tile * kTileBytes, pool, barrier, tile * 64, record, page,
                            (1U << kCluster) - 1);
    } else {
      tma_load_3d(tiles + tile * kTileBytes, pool, barrier, tile * 64, 0, page);
    }
  };
  for (int tile = first; tile < first + kHalfTiles; ++tile) load(tile);
  if (rope) load(kTiles - 1);
}

// Brings a page into the L2.
__device__ __forceinline__ void prefetch_page(const DecodeArgs& args, int32_t page) {
  if (args.page_stride != kPageSize * args.record_stride) return;  // the memory in between is not ours
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(args.pool + page * args.page_stride),
               "r"(static_cast<uint32_t>(args.page_stride))
               : "memory");
}

// The queries of a piece, by one thread.
__device__ __forceinline__ void load_queries(Shared& shared, const CUtensorMap* q, int row, uint32_t piece) {
  mbarrier_wait(&shared.q_empty, (piece & 1U) ^ 1U);
  mbarrier_arrive_expect_tx(&shared.q_full, kTiles * kTileBytes);
  for (int i = 0; i < kTiles; ++i) {
    tma_load_2d(shared.queries + i * kTileBytes, q, &shared.q_full, i * 64, row);
  }
}

template <int kCluster>
__device__ __forceinline__ void produce(const DecodeArgs& args, const CUtensorMap* q, const CUtensorMap* pool,
                                        int part, int first_row, Shared& shared) {
  uint32_t pieces = 0;
  uint32_t uses[2] = {0, 0};
  // The blocks of a part share the prefetches.
  const bool prefetch_first = first_row == 0;
  const bool prefetch_second = first_row == (args.num_tiles > 1 ? kRows : 0);
  for_each_piece(args, part, [&](const DecodePiece& piece) {
    if (piece.begin_page >= piece.end_page) return;
    const int32_t* table = args.page_table + args.seq_idx[piece.seq] * args.page_table_stride;
    const auto id_of = [&](int page) { return page < piece.end_page ? table[page] : -1; };
    int32_t first_id = id_of(piece.begin_page);
    int32_t second_id = id_of(piece.begin_page + 1);
    load_queries(shared, q, piece.seq * args.rows + first_row, pieces++);
    for (int page = piece.begin_page; page < piece.end_page; page += 2) {
      const int32_t next_first_id = id_of(page + 2);
      const int32_t next_second_id = id_of(page + 3);
      const bool second = second_id >= 0;
      const uint32_t free0 = (uses[0]++ & 1U) ^ 1U;
      const uint32_t free1 = (uses[1] & 1U) ^ 1U;
      mbarrier_wait(&shared.empty[0][0], free0);
      load_tiles<kCluster>(shared, pool, 0, 0, 0, true, first_id);
      mbarrier_wait(&shared.empty[0][1], free0);
      load_tiles<kCluster>(shared, pool, 0, 1, kHalfTiles, false, first_id);
      if (second) {
        ++uses[1];
        mbarrier_wait(&shared.empty[1][0], free1);
        load_tiles<kCluster>(shared, pool, 1, 0, kHalfTiles, false, second_id);
        mbarrier_wait(&shared.empty[1][1], free1);
        load_tiles<kCluster>(shared, pool, 1, 1, 0, true, second_id);
      }
      first_id = next_first_id;
      second_id = next_second_id;
      if (prefetch_first && first_id >= 0) prefetch_page(args, first_id);
      if (prefetch_second && second_id >= 0) prefetch_page(args, second_id);
    }
  });
}

// Sixteen codes, times the scale, as two times eight float16.
template <bool kIsE4M3>
__device__ __forceinline__ void widen(const uint4& codes, float scale, uint4& low, uint4& high) {
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  uint32_t out[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kIsE4M3) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        __half2 exact;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;"
            : "=r"(*reinterpret_cast<uint32_t*>(&exact))
            : "h"(static_cast<uint16_t>(words[i] >> (16 * half))));
        const float2 v = __half22float2(exact);
        const __half2 scaled = __floats2half2_rn(v.x * scale, v.y * scale);
        out[2 * i + half] = *reinterpret_cast<const uint32_t*>(&scaled);
      }
    } else {  // e5m2 is the upper byte of float16
      out[2 * i] = __byte_perm(words[i], 0, 0x1404);
      out[2 * i + 1] = __byte_perm(words[i], 0, 0x3424);
    }
  }
  low = make_uint4(out[0], out[1], out[2], out[3]);
  high = make_uint4(out[4], out[5], out[6], out[7]);
}

// Eight bf16 as float16, saturating.
__device__ __forceinline__ uint4 bf16_to_f16(const uint4& values) {
  const uint32_t words[4] = {values.x, values.y, values.z, values.w};
  uint32_t out[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 v = unpack_bf16(words[i]);
    const __half2 packed =
        __floats2half2_rn(fminf(fmaxf(v.x, -65504.0F), 65504.0F), fminf(fmaxf(v.y, -65504.0F), 65504.0F));
    out[i] = *reinterpret_cast<const uint32_t*>(&packed);
  }
  return make_uint4(out[0], out[1], out[2], out[3]);
}

// Four column tiles of a page from `first` on, and the rope tile, by 128 threads: codes from global memory
// (the L2, if the prefetch was in time) to registers, float16 to shared memory. Records from `valid` on
// become zeros.
template <bool kIsE4M3>
__device__ __forceinline__ void widen_tiles(const DecodeArgs& args, Shared& shared, int page_of_pair,
                                            int group, int first, bool rope, int32_t page, int valid,
                                            uint32_t parity) {
  constexpr int kRowBytes = kIsE4M3 ? kKvRowBytesFp8E4M3 : kKvRowBytesFp8E5M2;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const std::byte* records = args.pool + page * args.page_stride;
  std::byte* tiles = shared.keys[page_of_pair];
  const int own_key = thread / 16;  // and every eighth after it
  const int column = first * 64 + thread % 16 * 16;
  uint4 codes[8];
  float scales[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int key = own_key + 8 * i;
    const std::byte* record = records + key * kRowBytes;
    codes[i] = key < valid ? load_stream(record + column) : make_uint4(0, 0, 0, 0);
    if constexpr (kIsE4M3) {
      scales[i] =
          key < valid
              ? __ldg(reinterpret_cast<const float*>(record + kKvFp8ScaleOffset) + column / kKvScaleGroup)
              : 0.0F;
    }
  }
  mbarrier_wait(&shared.empty[page_of_pair][group], parity);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int key = own_key + 8 * i;
    uint4 low, high;
    widen<kIsE4M3>(codes[i], scales[i], low, high);
    std::byte* tile = tiles + column / 64 * kTileBytes;
    const int chunk = column % 64 / 8;
    *reinterpret_cast<uint4*>(tile + swizzle_128(key, chunk)) = low;
    *reinterpret_cast<uint4*>(tile + swizzle_128(key, chunk + 1)) = high;
  }
  if (rope) {
    std::byte* tile = tiles + (kTiles - 1) * kTileBytes;
    if constexpr (kIsE4M3) {  // bf16 in the record
      uint4 values[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = thread / 8 + 16 * i;
        values[i] = key < valid ? load_stream(records + key * kRowBytes + kKvFp8RopeOffset + thread % 8 * 16)
                                : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        *reinterpret_cast<uint4*>(tile + swizzle_128(thread / 8 + 16 * i, thread % 8)) =
            bf16_to_f16(values[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int key = thread / 4 + 32 * i;
        const uint4 rope_codes = key < valid
                                     ? load_stream(records + key * kRowBytes + kKvLatentDim + thread % 4 * 16)
                                     : make_uint4(0, 0, 0, 0);
        uint4 low, high;
        widen<false>(rope_codes, 1.0F, low, high);
        *reinterpret_cast<uint4*>(tile + swizzle_128(key, thread % 4 * 2)) = low;
        *reinterpret_cast<uint4*>(tile + swizzle_128(key, thread % 4 * 2 + 1)) = high;
      }
    }
  }
  fence_proxy_async_shared();
  __syncwarp();
  if (thread % 32 == 0) mbarrier_arrive(&shared.full[page_of_pair][group]);
}

template <bool kIsE4M3>
__device__ __forceinline__ void produce_widened(const DecodeArgs& args, const CUtensorMap* q, int part,
                                                int first_row, Shared& shared) {
  const bool one = threadIdx.x == kComputeThreads;
  uint32_t pieces = 0;
  uint32_t uses0 = 0;
  uint32_t uses1 = 0;
  for_each_piece(args, part, [&](const DecodePiece& piece) {
    if (piece.begin_page >= piece.end_page) return;
    const int32_t* table = args.page_table + args.seq_idx[piece.seq] * args.page_table_stride;
    const auto id_of = [&](int page) { return page < piece.end_page ? table[page] : -1; };
    int32_t first_id = id_of(piece.begin_page);
    int32_t second_id = id_of(piece.begin_page + 1);
    if (one) load_queries(shared, q, piece.seq * args.rows + first_row, pieces);
    __syncwarp();
    ++pieces;
    for (int page = piece.begin_page; page < piece.end_page; page += 2) {
      const int32_t next_first_id = id_of(page + 2);
      const int32_t next_second_id = id_of(page + 3);
      if (one && next_first_id >= 0) prefetch_page(args, next_first_id);
      if (one && next_second_id >= 0) prefetch_page(args, next_second_id);
      const bool second = second_id >= 0;
      const int valid = piece.num_keys - page * kPageSize;
#pragma unroll 1
      for (int turn = 0; turn < 4; ++turn) {  // both groups of the first page, then of the second one
        const int of_pair = turn >> 1;
        const int group = turn & 1;
        if (of_pair == 1 && !second) continue;
        widen_tiles<kIsE4M3>(args, shared, of_pair, group, of_pair == group ? 0 : kHalfTiles,
                             of_pair == group, of_pair == 0 ? first_id : second_id,
                             valid - of_pair * kPageSize, ((of_pair == 0 ? uses0 : uses1) & 1U) ^ 1U);
      }
      ++uses0;
      if (second) ++uses1;
      first_id = next_first_id;
      second_id = next_second_id;
    }
  });
}

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

template <bool kIsLeft, KvFormat kFormat, int kCluster>
__device__ __forceinline__ void compute(const DecodeArgs& args, int part, int first_row, Shared& shared) {
  constexpr bool kF16 = kFormat != KvFormat::kBF16;
  constexpr bool kWidened = kFormat == KvFormat::kFp8E4M3 || kFormat == KvFormat::kFp8E5M2;
  using Out = std::conditional_t<kFormat == KvFormat::kF16, f16, bf16>;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int lane = thread % 32;
  const int own_row = thread / 32 * 16 + lane / 4;  // and the one 8 further on
  const bool first_of_row = lane % 4 == 0;
  uint32_t pieces = 0;
  uint32_t all_pieces = 0;
  uint32_t pairs = 0;
  uint32_t uses[2] = {0, 0};

  for_each_piece(args, part, [&](const DecodePiece& piece) {
    float out[128];
#pragma unroll
    for (float& value : out) value = 0.0F;
    float sum[2] = {0.0F, 0.0F};
    int visible[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int query = min((first_row + own_row + 8 * h) / args.num_heads, args.q_len - 1);
      visible[h] = args.causal ? piece.num_keys - args.q_len + 1 + query : piece.num_keys;
    }
    const int all_visible = args.causal ? piece.num_keys - args.q_len + 1 : piece.num_keys;
    if (piece.begin_page < piece.end_page) {
      mbarrier_wait(&shared.q_full, pieces++ & 1U);
      if constexpr (kWidened) {
        for (int i = static_cast<int>(threadIdx.x); i < kTiles * kTileBytes / 16; i += kComputeThreads) {
          auto* chunk = reinterpret_cast<uint4*>(shared.queries) + i;
          *chunk = bf16_to_f16(*chunk);
        }
        fence_proxy_async_shared();
        meet(&shared.q_widened, pieces - 1);
      }
    }

#pragma unroll 1
    for (int page = piece.begin_page; page < piece.end_page; page += 2, ++pairs) {
      const bool has_second = page + 1 < piece.end_page;
      const bool is_last = page + 2 >= piece.end_page;
      const uint32_t parity0 = uses[0]++ & 1U;
      const uint32_t parity1 = uses[1] & 1U;
      if (has_second) ++uses[1];
      float s[32];
      uint32_t a[16];
      float maximum[2];
      const int first_key = page * kPageSize;
      if constexpr (kIsLeft) {
        const int valid = piece.num_keys - first_key;
        if (!kWidened && valid < kPageSize)
          zero_records(shared.keys[0], shared.full[0], parity0, valid, kWithinLeft);
        make_scores<true, kF16>(s, shared.queries, shared.keys[0], shared.full[0], parity0);
        wgmma_wait<0>();
        wgmma_pin(s);
        if (is_last && lane == 0) mbarrier_arrive(&shared.q_empty);

        const bool is_first = page == piece.begin_page;
        maximum[0] = is_first ? -INFINITY : shared.maximum[own_row];
        maximum[1] = is_first ? -INFINITY : shared.maximum[own_row + 8];
        if (first_key + kPageSize > all_visible) mask(s, visible, first_key);
        const float2 factors = softmax(s, maximum, sum, args.scale_log2);
        if (first_of_row) {
          shared.maximum[own_row] = maximum[0];
          shared.maximum[own_row + 8] = maximum[1];
          shared.rescale[0][own_row] = factors.x;
          shared.rescale[0][own_row + 8] = factors.y;
        }
        pack<kF16>(a, s);
        store_weights(shared.weights, a);
        mbarrier_arrive(&shared.first_weights);
        rescale(out, factors);
        add_values<kF16>(out, a, shared.keys[0]);
        wgmma_wait<0>();
        wgmma_pin(a);
        wgmma_pin(out);
        free_tiles<kCluster>(&shared.empty[0][0], lane);

        mbarrier_wait(&shared.second_weights, pairs & 1U);
        if (has_second) {
          const float2 later = {shared.rescale[1][own_row], shared.rescale[1][own_row + 8]};
          sum[0] *= later.x;
          sum[1] *= later.y;
          rescale(out, later);
          add_values<kF16>(out, shared.keys[1] + 8 * kTileBytes, shared.keys[1]);
          wgmma_wait<0>();
          wgmma_pin(out);
          free_tiles<kCluster>(&shared.empty[1][1], lane);
        }
      } else {
        const auto add_first = [&] {  // P₀·V₀, left in flight
          mbarrier_wait(&shared.first_weights, pairs & 1U);
          const float2 factors = {shared.rescale[0][own_row], shared.rescale[0][own_row + 8]};
          sum[0] *= factors.x;
          sum[1] *= factors.y;
          rescale(out, factors);
          add_values<kF16>(out, shared.weights, shared.keys[0] + kHalfTiles * kTileBytes);
        };
        if (has_second) {
          const int valid = piece.num_keys - first_key - kPageSize;
          if (!kWidened && valid < kPageSize)
            zero_records(shared.keys[1], shared.full[1], parity1, valid, kWithinRight);
          make_scores<false, kF16>(s, shared.queries, shared.keys[1], shared.full[1], parity1);
          add_first();
          wgmma_wait<1>();
          wgmma_pin(s);
          if (is_last && lane == 0) mbarrier_arrive(&shared.q_empty);
          maximum[0] = shared.maximum[own_row];
          maximum[1] = shared.maximum[own_row + 8];
          if (first_key + 2 * kPageSize > all_visible) mask(s, visible, first_key + kPageSize);
          const float2 later = softmax(s, maximum, sum, args.scale_log2);
          pack<kF16>(a, s);
          named_barrier_sync(kWithinRight, 128);  // all four warps have read the rope tile, and the maxima
          if (first_of_row) {
            shared.maximum[own_row] = maximum[0];
            shared.maximum[own_row + 8] = maximum[1];
            shared.rescale[1][own_row] = later.x;
            shared.rescale[1][own_row + 8] = later.y;
          }
          store_weights(shared.keys[1] + 8 * kTileBytes, a);
          mbarrier_arrive(&shared.second_weights);
          wgmma_wait<0>();
          wgmma_pin(out);
          free_tiles<kCluster>(&shared.empty[0][1], lane);
          rescale(out, later);
          add_values<kF16>(out, a, shared.keys[1] + kHalfTiles * kTileBytes);
          wgmma_wait<0>();
          wgmma_pin(a);
          wgmma_pin(out);
          free_tiles<kCluster>(&shared.empty[1][0], lane);
        } else {
          if (lane == 0) mbarrier_arrive(&shared.q_empty);  // the last pair
          add_first();
          wgmma_wait<0>();
          wgmma_pin(out);
          free_tiles<kCluster>(&shared.empty[0][1], lane);
          mbarrier_arrive(&shared.second_weights);
        }
      }
    }

    // Row sums of both sides; then each writes its columns.
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += __shfl_xor_sync(0xffffffffU, sum[h], 1);
      sum[h] += __shfl_xor_sync(0xffffffffU, sum[h], 2);
      if (first_of_row) shared.sums[kIsLeft ? 0 : 1][own_row + 8 * h] = sum[h];
    }
    meet(&shared.sums_written, all_pieces);
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float total = shared.sums[0][own_row + 8 * h] + shared.sums[1][own_row + 8 * h];
      inverse[h] = total > 0.0F ? 1.0F / total : 0.0F;
      const float lse = total > 0.0F ? shared.maximum[own_row + 8 * h] + log2f(total) : -INFINITY;
      const int row = first_row + own_row + 8 * h;
      if (kIsLeft && first_of_row && row < args.rows) {
        if (piece.slot >= 0) {
          args.partial_lse[int64_t{piece.slot} * args.rows + row] = lse;
        } else if (args.lse != nullptr) {
          args.lse[int64_t{piece.seq} * args.rows + row] = lse * kLn2;
        }
      }
    }
    meet(&shared.sums_read, all_pieces++);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + own_row + 8 * h;
      if (row >= args.rows) continue;
      const int64_t at = (piece.slot >= 0 ? int64_t{piece.slot} : int64_t{piece.seq}) * args.rows + row;
      const int64_t offset = at * kKvLatentDim + (kIsLeft ? 0 : kKvLatentDim / 2) + lane % 4 * 2;
      if (piece.slot >= 0) {
#pragma unroll
        for (int j = 0; j < 32; ++j) {
          *reinterpret_cast<float2*>(args.partial_out + offset + 8 * j) = {
              out[4 * j + 2 * h] * inverse[h], out[4 * j + 2 * h + 1] * inverse[h]};
        }
      } else {
#pragma unroll
        for (int j = 0; j < 32; ++j) {
          *reinterpret_cast<uint32_t*>(static_cast<Out*>(args.out) + offset + 8 * j) =
              pack_two<std::is_same_v<Out, f16>>(out[4 * j + 2 * h] * inverse[h],
                                                 out[4 * j + 2 * h + 1] * inverse[h]);
        }
      }
    }
  });
}

template <KvFormat kFormat, int kCluster>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    mla_decode_tiles_kernel(const __grid_constant__ DecodeArgs args, const __grid_constant__ CUtensorMap q,
                            const __grid_constant__ CUtensorMap pool) {
  extern __shared__ __align__(1024) std::byte shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const int part = static_cast<int>(blockIdx.x) / args.num_tiles;
  const int first_row = static_cast<int>(blockIdx.x) % args.num_tiles * kRows;
  constexpr bool kWidened = kFormat == KvFormat::kFp8E4M3 || kFormat == KvFormat::kFp8E5M2;
  if (threadIdx.x == 0) {
    mbarrier_init(&shared.q_full, 1);
    mbarrier_init(&shared.q_empty, 8);
    mbarrier_init(&shared.first_weights, 128);
    mbarrier_init(&shared.second_weights, 128);
    mbarrier_init(&shared.sums_written, kComputeThreads);
    mbarrier_init(&shared.sums_read, kComputeThreads);
    mbarrier_init(&shared.q_widened, kComputeThreads);
    for (int p = 0; p < 2; ++p) {
      for (int g = 0; g < 2; ++g) {
        mbarrier_init(&shared.full[p][g], kWidened ? 4 : 1);
        mbarrier_init(&shared.empty[p][g], 4 * kCluster);
      }
    }
    mbarrier_init_fence();
    tma_prefetch_map(&q);
    tma_prefetch_map(&pool);
  }
  __syncthreads();
  if constexpr (kCluster > 1) cluster_sync();
  pdl_wait();
  pdl_launch_dependents();  // this grid leaves no registers: the merge's blocks come as these end
  // Widening takes registers in the loading warpgroup.
  constexpr int kComputeRegisters = kWidened ? 208 : 232;
  constexpr int kLoadRegisters = kWidened ? 88 : 40;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == 0) {
    set_max_registers_up<kComputeRegisters>();
    compute<true, kFormat, kCluster>(args, part, first_row, shared);
  } else if (warpgroup == 1) {
    set_max_registers_up<kComputeRegisters>();
    compute<false, kFormat, kCluster>(args, part, first_row, shared);
  } else {
    set_max_registers_down<kLoadRegisters>();
    if constexpr (!kWidened) {
      if (threadIdx.x == kComputeThreads) produce<kCluster>(args, &q, &pool, part, first_row, shared);
    } else {
      produce_widened<kFormat == KvFormat::kFp8E4M3>(args, &q, part, first_row, shared);
    }
  }
  if constexpr (kCluster > 1) {
    __syncwarp();
    cluster_sync();  // the other block may still arrive at barriers here
  }
}

template <KvFormat kFormat, int kCluster>
void launch_tiles(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  const CUtensorMap q = decode_query_map<kFormat>(args, kRows);
  CUtensorMap pool{};
  if constexpr (kFormat == KvFormat::kBF16 || kFormat == KvFormat::kF16)
    pool = decode_page_map<kFormat>(args, kPageSize / kCluster);
  const dim3 grid(static_cast<unsigned>(geometry.num_parts * geometry.num_tiles));
  launch_kernel<mla_decode_tiles_kernel<kFormat, kCluster>>(launch, grid, dim3(kThreads), kSharedBytes, args,
                                                            q, pool);
  if (args.merge_inside) mla_merge(args, geometry, launch);
}

}  // namespace hadal::cuda::widened
