// Implements the loading warpgroup of mla/decode/fp8_products/kernel.cuh, which loads pages and queries by
// tensor maps and prepares the pages that have arrived. This file also implements the conversion of queries
// from bf16 to e4m3, which runs in the computing warps.
#pragma once

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/matrix.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/mla/decode/fp8_products/pieces.cuh"

namespace hadal::cuda::fp8_decode {

// Loads a group of a page's tiles: group 0 is tiles 0 and 2 and the scales, group 1 is tiles 1 and 3 and the
// rope part.
template <bool kIsE4M3, int kCluster>
__device__ __forceinline__ void load_group(Shared& shared, uint32_t slot, int group, const CUtensorMap* pool,
                                           const CUtensorMap* scales, int32_t page) {
  constexpr int kRecords = kPageSize / kCluster;  // records that a block loads for all blocks of its cluster
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

// The queries of a piece are loaded as bf16 into two slots of the ring, with 64 columns per tile.
constexpr int kQueryTiles = kKvRowDim / 64;
constexpr int kQuerySlots = (kQueryTiles + kTiles - 1) / kTiles;

__device__ __forceinline__ void load_queries(Shared& shared, RingPosition<kPageSlots>& at,
                                             const CUtensorMap* q, int row) {
  for (int first = 0; first < kQueryTiles; first += kTiles) {
    const int count = min(kTiles, kQueryTiles - first);
    mbarrier_wait(&shared.empty[at.slot][0], at.producer_parity());
    mbarrier_wait(&shared.empty[at.slot][1], at.producer_parity());
    mbarrier_arrive_expect_tx(&shared.full[at.slot][0], count * kTileBytes);
    mbarrier_arrive(&shared.full[at.slot][1]);
    for (int i = 0; i < count; ++i) {
      tma_load_2d(shared.pages[at.slot] + i * kTileBytes, q, &shared.full[at.slot][0], (first + i) * 64, row);
    }
    at.advance();
  }
}

// Loads the pages and queries of all pieces. It is called by one thread.
template <bool kIsE4M3, int kCluster>
__device__ __forceinline__ void load_pages(const DecodeArgs& args, const CUtensorMap* q,
                                           const CUtensorMap* pool, const CUtensorMap* scales, int part,
                                           int tile, Shared& shared) {
  RingPosition<kPageSlots> at;
  bool waited = !args.settled;  // pdl_wait has been called
  for_each_piece(args, part, [&](const DecodePiece& piece) {
    if (kQueriesByRing<kCluster> && piece.begin_page >= piece.end_page) return;
    const int32_t* table = args.page_table + args.seq_idx[piece.seq] * args.page_table_stride;
    const int first_new = (piece.num_keys - args.q_len) / kPageSize;  // page of the first new record
    if constexpr (kQueriesByRing<kCluster>) {
      if (!waited) {
        waited = true;
        const int end = min(piece.end_page, max(piece.num_keys - args.q_len, 0) / kPageSize);
        for (int page = piece.begin_page + tile; page < min(end, piece.begin_page + 4);
             page += args.num_tiles)
          bulk_prefetch_l2(args.pool + table[page] * args.page_stride,
                           static_cast<uint32_t>(args.page_stride));
        pdl_wait();
      }
      load_queries(shared, at, q, piece.seq * args.rows + tile * kRows);
    } else if (waited && piece.begin_page < piece.end_page) {
      const int64_t first_query = int64_t{piece.seq} * args.rows + tile * kRows;
      bulk_prefetch_l2(
          static_cast<const bf16*>(args.q) + first_query * kKvRowDim,
          static_cast<uint32_t>(min(kRows, args.rows - tile * kRows) * kKvRowDim * int64_t{sizeof(bf16)}));
    }
    for (int page = piece.begin_page; page < piece.end_page; page += 2) {
      const bool second = page + 1 < piece.end_page;
      if (!kQueriesByRing<kCluster> && !waited && page + 1 >= first_new) {
        pdl_wait();
        waited = true;
      }
      const int32_t first_id = table[page];
      const int32_t second_id = second ? table[page + 1] : 0;
      // The blocks of a part divide the prefetches among themselves. A prefetch is issued before the wait for
      // the slots, because it first has to read a page id.
      for (int ahead = page + kPageSlots; ahead < page + kPageSlots + 2; ++ahead) {
        const bool is_needed = kQueriesByRing<kCluster> ? args.num_tiles > 1 : ahead < first_new;
        if (is_needed && ahead < piece.end_page && ahead % args.num_tiles == tile)
          bulk_prefetch_l2(args.pool + table[ahead] * args.page_stride,
                           static_cast<uint32_t>(args.page_stride));
      }
      RingPosition<kPageSlots> next = at;
      next.advance();
#pragma unroll 1
      for (int group = 0; group < 2; ++group) {  // the order in which add_values frees the groups
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

// Prepares the pages that have arrived: their scales, and zeros for records beyond the length. It is called
// by one warp.
template <bool kIsE4M3, int kCluster>
__device__ __forceinline__ void ready_pages(const DecodeArgs& args, int part, Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  RingPosition<kPageSlots> at;
  for_each_piece(args, part, [&](const DecodePiece& piece) {
    if constexpr (kQueriesByRing<kCluster>) {
      if (piece.begin_page >= piece.end_page) return;
      for (int i = 0; i < kQuerySlots; ++i) {  // slots with queries only advance the barriers' phases
        mbarrier_wait(&shared.full[at.slot][0], at.parity());
        if (lane < 2) mbarrier_arrive(&shared.ready[at.slot][lane]);
        at.advance();
      }
    }
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
          facts.bits = ceilf(log2f(fmaxf(top, 0x1p-60F)));  // finite also if all scales of a page are zero
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

// Converts the queries of a tile, from two slots of the ring or from global memory, to e4m3 in shared memory.
// It is called by the computing threads. Eight lanes share a row, so a warp quantises four rows at a time.
// Rows beyond the sequence's last row become zeros.
template <bool kIsE4M3, int kCluster>
__device__ __forceinline__ void quantise_queries(const DecodeArgs& args, int seq, int first_row,
                                                 RingPosition<kPageSlots>& at, Shared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int chunk = lane % 8;
  constexpr int kLoads = kQueryTiles;
  uint4 loaded[2][kLoads];
  if constexpr (kQueriesByRing<kCluster>) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (i % kTiles == 0) mbarrier_wait(&shared.full[at.slot][0], at.parity());
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp * 8 + half * 4 + lane / 8;
        loaded[half][i] = *reinterpret_cast<const uint4*>(shared.pages[at.slot] + i % kTiles * kTileBytes +
                                                          swizzle_128(row, chunk));
        if (first_row + row >= args.rows) loaded[half][i] = make_uint4(0, 0, 0, 0);
      }
      if (i % kTiles == kTiles - 1 || i == kLoads - 1) {
        __syncwarp();
        mbarrier_arrive_cluster<kCluster>(&shared.empty[at.slot][0], lane);
        mbarrier_arrive_cluster<kCluster>(&shared.empty[at.slot][1], lane);
        at.advance();
      }
    }
  } else {
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

}  // namespace hadal::cuda::fp8_decode
