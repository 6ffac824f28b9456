// Computes MLA decode over FP8 caches for many query rows (64 per tile) by FP8 wgmma directly on the cache's
// codes (docs/kernels/cuda-mla-decode-fp8.md).
//
// Grid: it has num_parts × num_tiles persistent blocks; the blocks of a part's tiles have consecutive
// numbers. If the number of tiles is even, two of these blocks form a cluster, and each loads half of every
// page for both. Pages are processed in pairs. Warpgroups 0 and 1 each score one page of the pair, and then
// multiply both pages' values for half of the 512 output columns:
//   S = Q · Kᵀ of the own page           64 rows × 64 keys, float32
//   bounds of the rows' weights       ──(1)──  exchanged
//   P to shared memory                ──(2)──  both halves of the pair's tile
//   Oᵀ[256 × 64] += Vᵀ · Pᵀ              of both pages
// FP8 wgmma supports only K-major operands, and V is MN-major, so Vᵀ is loaded to registers. ldmatrix.trans
// moves pairs of bytes, and two byte permutations separate them. The two dims of a pair become rows g and g +
// 8 of the operand, and the keys are permuted (see below). Each element is transposed once per block.
// Warpgroup 2 loads: one thread of warp 0 issues the loads of pages, and warp 1 prepares a page that has
// arrived: it copies the scales, finds the largest, and zeroes records beyond the length, which may hold
// anything. Records that masks hide from all queries are zeroed by the warpgroup that scores the page.
//
// Queries are quantised when a piece begins: one e4m3 per value, and one scale, a power of two, per row. A
// block without a cluster loads them through two slots of the ring of pages, before the slots are needed for
// pages; a cluster's blocks read them from global memory. The rope part of e4m3 records is bf16. It is
// multiplied as bf16 with the rope part of the query, which is divided by the row's scale without rounding. A
// key's scale multiplies its score and its weight: a weight is 2^(score − base) · scale, and the row sum adds
// 2^(score − base). The base of a row is chosen so that weights are at most 256. It grows by whole numbers,
// so that earlier sums are multiplied by powers of two.
//
// The tensor cores keep about 14 bits of FP8 sums. So scores are added up in float32 after every 128 of k,
// and values after every pair of pages (128 keys).
//
// In P and V, place 4·c + i of every 16 keys holds key 2·c + (i & 1) + 8 · (i >> 1). This is the order of the
// accumulators of scores in a thread, and the order in which ldmatrix.trans delivers V.
//
// barrier          arrivals              guards                                          phase
// full[4][g]       1 + bytes             group g of the page in a ring slot; queries     each use of the slot
// ready[4][g]      1 (warp 1)            its scales (g = 0); records beyond the length   each use of the slot
// empty[4][g]      8 (computing) ×       the tiles of group g have been read             each use of the slot
//                  blocks
// named 1          256 (computing)       (1), (2), and the beginning and end of a piece
// named 2, 3       128                   records of a page that masks hide are zeros
// Group 0 is tiles 0 and 2 of 128 latents, and scales; group 1 is tiles 1 and 3, and the rope part.
//
// A computing thread has 240 registers: 128 for the output, 32 for sums, and 32 that hold either scores or
// operand A (16) and the bytes of the next operand A (16). A loading thread has 24.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/mla/decode/fp8_products/load.cuh"

namespace hadal::cuda::fp8_decode {

template <bool kIsE4M3, int kCluster, bool kMasks>
__device__ __forceinline__ void attend(const DecodeArgs& args, int part, int first_row, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const int side = thread / 128;
  const int warp = thread / 32 % 4;
  const int lane = thread % 32;
  const int own_row = warp * 16 + lane / 4;  // row of scores; the thread's other row is 8 further on
  const bool first_of_row = lane % 4 == 0;
  const int column = 2 * (lane % 4);
  // The warp's 16 dims of m-tile m begin at first_dim + 64 · m; tiles 2 · side and 2 · side + 1 have two
  // m-tiles each.
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
      rows.visible[h] = kMasks        ? query
                        : args.causal ? piece.num_keys - args.q_len + 1 + query
                                      : piece.num_keys;
    }
    float out[4][32];
#pragma unroll
    for (auto& tile : out) {
#pragma unroll
      for (float& value : tile) value = 0.0F;
    }
    named_barrier_sync(kCompute, kComputeThreads);  // the last piece's queries and sums have been read
    if (piece.begin_page < piece.end_page) {
      quantise_queries<kIsE4M3, kCluster>(args, piece.seq, first_row, at, shared);
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
        const int valid = piece.num_keys - (page + side) * kPageSize;
        if (may_hide<kMasks>(valid)) {
          hide_records<kIsE4M3>(args, piece.seq, valid, shared, slot, side == 0 ? at.phase : next.phase,
                                side);
        }
        make_scores<kIsE4M3>(s, shared, slot, side == 0 ? at.phase : next.phase);
        const int end = (page + side + 1) * kPageSize;
        const bool masked = end > piece.num_keys - most_hidden<kMasks>(args);
        const float2 tops = mask_scores<kMasks>(args, piece, s, rows, end - kPageSize, masked);
        const float bits = (kIsE4M3 ? shared.keys[slot].bits : 0.0F) - kWeightBits;
        bounds = {tops.x * rows.scale[0] + bits, tops.y * rows.scale[1] + bits};
      } else {  // there is no second page, and its weights are zeros
#pragma unroll
        for (float& value : s) value = -INFINITY;
      }
      if (first_of_row) {
        shared.bound[side][own_row] = bounds.x;
        shared.bound[side][own_row + 8] = bounds.y;
      }
      named_barrier_sync(kCompute, kComputeThreads);  // bounds are written; the last pair's weights are read
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
      named_barrier_sync(kCompute, kComputeThreads);  // weights and factors are written
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
        args.lse[first_out + first_row + thread] = lse * kLn2;
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
  });
}

template <bool kIsE4M3, int kCluster, bool kMasks>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    mla_decode_fp8_kernel(const __grid_constant__ DecodeArgs args, const __grid_constant__ CUtensorMap q,
                          const __grid_constant__ CUtensorMap pool,
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
    tma_prefetch_map(&q);
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
    attend<kIsE4M3, kCluster, kMasks>(args, part, tile * kRows, shared);
  } else {
    set_max_registers_down<kLoadRegisters>();
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    if (warp == 0) {
      if (threadIdx.x % 32 == 0) load_pages<kIsE4M3, kCluster>(args, &q, &pool, &scales, part, tile, shared);
    } else if (warp == 1) {
      ready_pages<kIsE4M3, kCluster>(args, part, shared);
    }
  }
  if constexpr (kCluster > 1) {
    __syncwarp();
    cluster_sync();  // the other block may still arrive at barriers here
  }
}

template <bool kIsE4M3, int kCluster, bool kMasks>
void launch_fp8(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  constexpr int kRowBytes = kIsE4M3 ? kKvRowBytesFp8E4M3 : kKvRowBytesFp8E5M2;
  constexpr int kRecords = kPageSize / kCluster;
  const CUtensorMap pool =
      make_record_map<2>(args.pool, {kRowBytes, int64_t{1} << 31}, {kRowBytes}, {128, kRecords});
  CUtensorMap scales = pool;
  if (kIsE4M3) {
    scales = make_record_map<2>(args.pool, {kRowBytes, int64_t{1} << 31}, {kRowBytes},
                                {kScaleBytes, kRecords}, CU_TENSOR_MAP_SWIZZLE_NONE);
  }
  const CUtensorMap q = decode_query_map<KvFormat::kBF16>(args, kRows);
  const dim3 grid(static_cast<unsigned>(geometry.num_parts * geometry.num_tiles));
  launch_kernel<mla_decode_fp8_kernel<kIsE4M3, kCluster, kMasks>>(launch, grid, dim3(kThreads),
                                                                  sizeof(Shared), args, q, pool, scales);
}

}  // namespace hadal::cuda::fp8_decode

namespace hadal::cuda {

template <KvFormat kFormat, bool kMasks>
void mla_decode_fp8_products(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  static_assert(kFormat == KvFormat::kFp8E4M3 || kFormat == KvFormat::kFp8E5M2);
  constexpr bool kIsE4M3 = kFormat == KvFormat::kFp8E4M3;
  if (geometry.num_tiles % 2 == 0) {  // two tiles of a part share what they load
    fp8_decode::launch_fp8<kIsE4M3, 2, kMasks>(args, geometry, launch);
  } else {
    fp8_decode::launch_fp8<kIsE4M3, 1, kMasks>(args, geometry, launch);
  }
}

}  // namespace hadal::cuda
