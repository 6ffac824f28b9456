// Implements the loading warpgroup of mla/decode/tiles/kernel.cuh. It loads pages of 16-bit caches by tensor
// maps, and pages of FP8 caches through registers, where they are widened to float16.
#pragma once

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/matrix.cuh"
#include "kernels/cuda/mla/decode/tiles/pieces.cuh"

namespace hadal::cuda::tiles {

// Loads the tiles kBegin…kEnd − 1, counted in loading order, of a page, after step `step` of the previous
// page's tiles is free. Each block of a cluster loads half of the records for both. `once` means that no
// other block reads the page.
template <bool kIsFirst, int kCluster, int kBegin, int kEnd>
__device__ __forceinline__ void load_tiles(Shared& shared, const CUtensorMap* pool, int step, uint32_t parity,
                                           int32_t page, bool once) {
  constexpr int kPage = kIsFirst ? 0 : 1;
  constexpr int kRecords = kPageSize / kCluster;
  const int record = kCluster > 1 ? static_cast<int>(cluster_rank()) * kRecords : 0;
  mbarrier_wait(&shared.empty[kPage][step], parity);
// Unrolling would lengthen the code, which the first execution in a block fetches from memory.
#pragma unroll 1
  for (int i = kBegin; i < kEnd; ++i) {
    const int tile = tile_in_order<kIsFirst>(i);
    Mbarrier* barrier = &shared.full[kPage][tile];
    std::byte* to = shared.keys[kPage] + tile * kTileBytes + record * 128;
    mbarrier_arrive_expect_tx(barrier, kTileBytes);
    if constexpr (kCluster > 1) {
      tma_load_3d_multicast(to, pool, barrier, tile * 64, record, page, (1U << kCluster) - 1);
    } else {
      tma_load_3d(to, pool, barrier, tile * 64, 0, page, once ? L2Policy::kEvictFirst : L2Policy::kNormal);
    }
  }
}

// Prefetches a page into the L2.
__device__ __forceinline__ void prefetch_page(const DecodeArgs& args, int32_t page) {
  if (args.page_stride != kPageSize * args.record_stride) return;  // other data lies between the pages
  bulk_prefetch_l2(args.pool + page * args.page_stride, static_cast<uint32_t>(args.page_stride));
}

// Loads the queries of a piece; called by one thread.
__device__ __forceinline__ void load_queries(Shared& shared, const CUtensorMap* q, int row, uint32_t piece) {
  mbarrier_wait(&shared.q_empty, (piece & 1U) ^ 1U);
  mbarrier_arrive_expect_tx(&shared.q_full, kTiles * kTileBytes);
  for (int i = 0; i < kTiles; ++i) {
    tma_load_2d(shared.queries + i * kTileBytes, q, &shared.q_full, i * 64, row);
  }
}

// Makes the widening threads wait for earlier kernels. With settled inputs (mla.h) they first prefetch the
// first pages into the L2.
struct SettledInputs {
  bool waited;

  __device__ __forceinline__ explicit SettledInputs(const DecodeArgs& args) : waited(!args.settled) {
    if (waited) pdl_wait();
  }
  __device__ __forceinline__ void prefetch_and_wait(const DecodeArgs& args, const DecodePiece& piece,
                                                    const int32_t* table) {
    if (waited) return;
    waited = true;
    const int end = min(piece.end_page, max(piece.num_keys - args.q_len, 0) / kPageSize);
    if (threadIdx.x == kComputeThreads) {
      for (int page = piece.begin_page; page < min(end, piece.begin_page + 4); ++page) {
        prefetch_page(args, table[page]);
      }
    }
    pdl_wait();
  }
};

// Loads the queries of all pieces, in a separate thread, so that pages and queries do not wait for each
// other.
__device__ __forceinline__ void produce_queries(const DecodeArgs& args, const CUtensorMap* q, int part,
                                                int first_row, Shared& shared) {
  uint32_t pieces = 0;
  bool waited = !args.settled;
  if (waited) pdl_wait();
  for_each_piece(args, part, [&](const DecodePiece& piece) {
    if (piece.begin_page >= piece.end_page) return;
    if (!waited) pdl_wait();
    waited = true;
    load_queries(shared, q, piece.seq * args.rows + first_row, pieces++);
  });
}

template <int kCluster>
__device__ __forceinline__ void produce_pages(const DecodeArgs& args, const CUtensorMap* pool, int part,
                                              int first_row, Shared& shared) {
  uint32_t uses[2] = {0, 0};
  // If there is only one tile per sequence, each page is read once and the block is memory-bound, so
  // prefetches would compete with its loads. Several tiles of a part divide the prefetches among themselves.
  const bool is_only_tile = args.num_tiles == 1;
  const bool once = kCluster == 1 && is_only_tile;
  const bool prefetch_first = first_row == 0 && !is_only_tile;
  const bool prefetch_second = first_row == kRows;
  bool waited = !args.settled;
  if (waited) pdl_wait();
  bool cluster_ready = kCluster == 1;
  for_each_piece(args, part, [&](const DecodePiece& piece) {
    if (piece.begin_page >= piece.end_page) return;
    const int32_t* table = args.page_table + args.seq_idx[piece.seq] * args.page_table_stride;
    const auto id_of = [&](int page) { return page < piece.end_page ? table[page] : -1; };
    int32_t first_id = id_of(piece.begin_page);
    int32_t second_id = id_of(piece.begin_page + 1);
    if (!cluster_ready) cluster_wait_unaligned();
    cluster_ready = true;
    // With settled inputs the block's first pair is loaded before pdl_wait, except for pages that hold one of
    // the newest records. No other pages are loaded or prefetched before it. The queries, which another
    // thread loads, go through the same copy engine, and prefetches made them 3 µs late.
    const auto wait = [&] {
      if (!waited) pdl_wait();
      waited = true;
    };
    const int settled_end = max(piece.num_keys - args.q_len, 0) / kPageSize;
    for (int page = piece.begin_page; page < piece.end_page; page += 2) {
      const int32_t next_first_id = id_of(page + 2);
      const int32_t next_second_id = id_of(page + 3);
      const uint32_t free0 = (uses[0]++ & 1U) ^ 1U;
      if (page >= settled_end) wait();
      load_tiles<true, kCluster, 0, 1>(shared, pool, 0, free0, first_id, once);
      load_tiles<true, kCluster, 1, 5>(shared, pool, 1, free0, first_id, once);
      load_tiles<true, kCluster, 5, 9>(shared, pool, 2, free0, first_id, once);
      if (second_id >= 0) {
        const uint32_t free1 = (uses[1]++ & 1U) ^ 1U;
        if (page + 1 >= settled_end) wait();
        load_tiles<false, kCluster, 0, 4>(shared, pool, 0, free1, second_id, once);
        load_tiles<false, kCluster, 4, 9>(shared, pool, 1, free1, second_id, once);
      }
      wait();
      first_id = next_first_id;
      second_id = next_second_id;
      if (prefetch_first && first_id >= 0) prefetch_page(args, first_id);
      if (prefetch_second && second_id >= 0) prefetch_page(args, second_id);
    }
  });
  if (!cluster_ready) cluster_wait_unaligned();
}

// Converts sixteen codes, multiplied by the scale, to float16: the first eight go to `low`, the others to
// `high`.
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

// Converts eight bf16 to float16, saturating.
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

// Widens four column tiles of a page from tile `first` on, and with `rope` also the rope tile; called by 128
// threads. Codes go from global memory (or the L2, if the prefetch has completed) to registers, and as
// float16 to shared memory. Records from `valid` on become zeros, and so do the values of those that masks
// hide from all queries of the sequence `seq`.
template <bool kIsE4M3, bool kMasks>
__device__ __forceinline__ void widen_tiles(const DecodeArgs& args, Shared& shared, int page_of_pair,
                                            int group, int first, bool rope, int seq, int32_t page, int valid,
                                            uint32_t parity) {
  constexpr int kRowBytes = kIsE4M3 ? kKvRowBytesFp8E4M3 : kKvRowBytesFp8E5M2;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const std::byte* records = args.pool + page * args.page_stride;
  std::byte* tiles = shared.keys[page_of_pair];
  const int own_key = thread / 16;  // the thread has this key and every eighth key after it
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
  // These tiles become free in one or more steps, of which this is the last.
  const int step = page_of_pair == 0 ? group + 1 : group;
  mbarrier_wait(&shared.empty[page_of_pair][step], parity);
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
  if (may_hide<kMasks>(valid)) {
    const uint64_t seen = seen_by_any(args, seq, valid) >> own_key;
    std::byte* tile = tiles + column / 64 * kTileBytes;
#pragma unroll 1
    for (int i = 0; i < kPageSize; i += 8) {
      if ((seen >> i & 1) != 0) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<uint4*>(tile + swizzle_128(own_key + i, column % 64 / 8 + half)) =
            make_uint4(0, 0, 0, 0);
      }
    }
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
  if (thread % 32 == 0) mbarrier_arrive(full_of<true>(shared.full[page_of_pair], first));
}

template <bool kIsE4M3, bool kMasks>
__device__ __forceinline__ void produce_widened(const DecodeArgs& args, const CUtensorMap* q, int part,
                                                int first_row, Shared& shared) {
  const bool one = threadIdx.x == kComputeThreads;
  uint32_t pieces = 0;
  uint32_t uses0 = 0;
  uint32_t uses1 = 0;
  SettledInputs settled(args);
  for_each_piece(args, part, [&](const DecodePiece& piece) {
    if (piece.begin_page >= piece.end_page) return;
    const int32_t* table = args.page_table + args.seq_idx[piece.seq] * args.page_table_stride;
    const auto id_of = [&](int page) { return page < piece.end_page ? table[page] : -1; };
    int32_t first_id = id_of(piece.begin_page);
    int32_t second_id = id_of(piece.begin_page + 1);
    settled.prefetch_and_wait(args, piece, table);
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
        widen_tiles<kIsE4M3, kMasks>(args, shared, of_pair, group, of_pair == group ? 0 : kHalfTiles,
                                     of_pair == group, piece.seq, of_pair == 0 ? first_id : second_id,
                                     valid - of_pair * kPageSize, ((of_pair == 0 ? uses0 : uses1) & 1U) ^ 1U);
      }
      ++uses0;
      if (second) ++uses1;
      first_id = next_first_id;
      second_id = next_second_id;
    }
  });
}

}  // namespace hadal::cuda::tiles
