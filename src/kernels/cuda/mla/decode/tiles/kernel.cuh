// Computes MLA decode for many query rows (64 per tile) by wgmma over whole pages.
//
// Grid: it has num_parts × num_tiles persistent blocks of three warpgroups. The blocks of a part's tiles have
// consecutive numbers, because they read the same pages. With 16-bit caches and an even number of tiles, two
// of these blocks are a cluster, and each loads half of every page for both. Warpgroup 2 loads. With
// 16-bit caches one thread loads pages and one loads queries, by tensor maps. With FP8 caches all 128 threads
// widen codes, multiplied by their scales, to float16, which keeps 11 bits where bf16 keeps 8; all products
// are then float16. Warpgroups 0 ("left") and 1 ("right") compute. Pages are processed in pairs: left scores
// the first page of a pair, right the second. Each warpgroup accumulates half of the output's columns (left
// 0…255, right 256…511), and so needs the weights that the other warpgroup computes:
//   left                                          right
//   S = Q·K₀ᵀ (after P₁·V₁ of the previous pair)  S = Q·K₁ᵀ, its rows' largest
//   m₀, P₀, a₀ = 2^(m−m₀)             ──(1)──►    O = a₀·O + P₀·V₀ right, in flight
//   O = a₀·O + P₀·V₀ left                         m₁, P₁, a₁ = 2^(m₀−m₁) (P₁ into the rope tile of K₁,
//                                     ◄──(2)──    which is not read again)
//   O = a₁·O + P₁·V₁ left                         O = a₁·O + P₁·V₁ right
// Both sides finish the first page while the softmax of the second page runs. So the next pair's first
// page is loaded while P₁·V₁ is computed, and it is scored while the next pair's second page is loaded. Left
// is about half a pair ahead of right, and one side's softmax runs during the other side's products. The last
// pair of a piece may lack its second page. A block without a cluster is bound by the loads of its pages, so
// it scores the first page at the beginning of the pair, which saves a copy of the code of left's scores.
//
// A running maximum (m) is renewed only when it grows by more than 8 (base 2). So weights stay below 2^8, and
// a₀ and a₁ are nearly always 1: the output is rarely rescaled, and for most pages a vote of the warp is the
// only exchange of maxima.
//
// The kernel is bound by the tensor cores and by the bandwidth of shared memory: in the 64 × 64 × 16 products
// of scores both operands use all of its 128 bytes per clock, and the exchanges of a softmax through shared
// memory wait for these reads. So the last tile of the queries is held in registers, and values are computed
// in products of 256 columns.
//
// A page is nine tiles of 64 keys × 64 columns (128-byte swizzle, 8 KB; tile 8 is the rope part). Each tile
// is waited for separately, in the order in which the tiles become free and are loaded: rope, 0…3, 4…7 for
// the first page of a pair, and 4…7, 0…3, rope for the second. Records beyond the length, and records that
// masks hide from all queries, may hold anything: with 16-bit caches the warpgroup that scores the page
// zeroes them before use, and with FP8 caches the loading warpgroup writes zeros. Meanwhile the next pair is
// prefetched into the L2.
//
// barrier         arrivals              guards                                         phase
// q_full          1 + bytes             the queries of a piece                         pieces with pages
// q_empty         8 (compute warps)     their last scores are made                     pieces with pages
// full[p][t]      1 + bytes             tile t of page p of a pair; FP8: 4 arrivals,   pairs that have page p
//                                       at t = 0 for 0…3 and 8, at t = 4 for 4…7
// empty[0][0]     4 (left)  × blocks    tile 8 of the first page                       "
// empty[0][1]     4 (left)  of the      tiles 0…3 of the first page                    "
// empty[0][2]     4 (right) cluster     tiles 4…7 of the first page                    "
// empty[1][0]     4 (right)             tiles 4…7 of the second page                   "
// empty[1][1]     4 (left)              tiles 0…3, 8 (now P₁) of the second page       "
// first_weights   128 (left)            hand-over (1): P₀, m₀, a₀; last, row sums      each pair
// second_weights  128 (right)           hand-over (2): P₁, m₁, a₁; last, row sums      each pair
// q_widened       256                   FP8: the queries are float16                   pieces with pages
// named 1, 2      128                   within left; within right
//
// A compute thread has 232 registers, of which the output uses 128, scores 32, weights 16 and queries 16; a
// loading thread has 40. With FP8 caches these numbers are 208 and 88.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/mla/decode/tiles/end.cuh"
#include "kernels/cuda/mla/decode/tiles/load.cuh"

namespace hadal::cuda::tiles {

template <bool kIsLeft, KvFormat kFormat, int kCluster, bool kMasks>
__device__ __forceinline__ void compute(const DecodeArgs& args, int part, int first_row, Shared& shared) {
  constexpr bool kF16 = kFormat != KvFormat::kBF16;
  constexpr bool kWidened = kFormat == KvFormat::kFp8E4M3 || kFormat == KvFormat::kFp8E5M2;
  constexpr bool kAhead = kCluster > 1;  // left scores the next pair's first page after P₁·V₁
  using Out = std::conditional_t<kFormat == KvFormat::kF16, f16, bf16>;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int lane = thread % 32;
  const int own_row = thread / 32 * 16 + lane / 4;  // the thread's other row is 8 further on
  const bool first_of_row = lane % 4 == 0;
  uint32_t pieces = 0;
  uint32_t pairs = 0;
  uint32_t uses[2] = {0, 0};

  for_each_piece(args, part, [&](const DecodePiece& piece) {
    float out[128];
#pragma unroll
    for (float& value : out) value = 0.0F;
    float sum[2] = {0.0F, 0.0F};
    int visible[2];  // see mask()
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int query = min((first_row + own_row + 8 * h) / args.num_heads, args.q_len - 1);
      visible[h] = kMasks ? query : args.causal ? piece.num_keys - args.q_len + 1 + query : piece.num_keys;
    }
    // Every row sees the keys before this one.
    const int all_visible = piece.num_keys - most_hidden<kMasks>(args);
    if (piece.begin_page < piece.end_page) {
      mbarrier_wait(&shared.q_full, pieces++ & 1U);
      if constexpr (kWidened) {
        for (int i = static_cast<int>(threadIdx.x); i < kTiles * kTileBytes / 16; i += kComputeThreads) {
          auto* chunk = reinterpret_cast<uint4*>(shared.queries) + i;
          *chunk = bf16_to_f16(*chunk);
        }
        fence_proxy_async_shared();
        synchronise(&shared.q_widened, pieces - 1);
      }
    }

    float s[32];
    uint32_t a[16];
    float maximum[2] = {-INFINITY, -INFINITY};
    uint32_t held[kHeld * 16];
    if (!kWidened && piece.begin_page < piece.end_page) hold_queries(held, shared.queries);
    // Left computes the scores of a pair's first page: first over the rope tile, which arrives long before
    // the other tiles, then over the others.
    const auto begin_first_scores = [&](int page, uint32_t parity) {
      const int valid = piece.num_keys - page * kPageSize;
      if (!kWidened)
        zero_records<kMasks>(args, piece.seq, shared.keys[0], shared.full[0], parity, valid, kWithinLeft);
      make_scores<true, kF16, kWidened, 0, 1>(s, shared.queries, held, shared.keys[0], shared.full[0],
                                              parity);
    };
    const auto end_first_scores = [&](uint32_t parity) {
      make_scores<true, kF16, kWidened, 1, kTiles>(s, shared.queries, held, shared.keys[0], shared.full[0],
                                                   parity);
    };
    const auto free_first_scores = [&](bool is_last) {
      mbarrier_arrive_cluster<kCluster>(&shared.empty[0][0], lane);
      if (is_last && lane == 0) mbarrier_arrive(&shared.q_empty);
    };
    const auto make_first_scores = [&](int page) {
      const uint32_t parity = uses[0]++ & 1U;
      begin_first_scores(page, parity);
      end_first_scores(parity);
      wgmma_wait<0>();
      wgmma_pin(s);
      free_first_scores(page + 2 >= piece.end_page);
    };
    if (kIsLeft && kAhead && piece.begin_page < piece.end_page) make_first_scores(piece.begin_page);

#pragma unroll 1
    for (int page = piece.begin_page; page < piece.end_page; page += 2, ++pairs) {
      const bool has_second = page + 1 < piece.end_page;
      const bool is_last = page + 2 >= piece.end_page;
      const int first_key = page * kPageSize;
      if constexpr (kIsLeft) {
        if constexpr (!kAhead) make_first_scores(page);
        if (first_key + kPageSize > all_visible) mask<kMasks>(args, piece, s, visible, first_key);
        const float2 factors = renew(largest(s), maximum, args.scale_log2);
        make_weights(s, maximum, factors, sum, args.scale_log2);
        if (first_of_row) {
          shared.maximum[own_row] = maximum[0];
          shared.maximum[own_row + 8] = maximum[1];
          shared.rescale[0][own_row] = factors.x;
          shared.rescale[0][own_row + 8] = factors.y;
        }
        pack<kF16>(a, s);
        store_weights(shared.weights, a);
        if (is_last) publish_sums(sum, shared.sums[pieces & 1U][0], own_row);
        mbarrier_arrive(&shared.first_weights);
        rescale(out, factors);
        add_values<kF16>(out, a, shared.keys[0]);
        wgmma_wait<0>();
        wgmma_pin(a);
        wgmma_pin(out);
        mbarrier_arrive_cluster<kCluster>(&shared.empty[0][1], lane);

        mbarrier_wait(&shared.second_weights, pairs & 1U);
        if (has_second) {
          maximum[0] = shared.maximum[own_row];
          maximum[1] = shared.maximum[own_row + 8];
          const float2 later = {shared.rescale[1][own_row], shared.rescale[1][own_row + 8]};
          sum[0] *= later.x;
          sum[1] *= later.y;
          rescale(out, later);
          add_values<kF16>(out, shared.keys[1] + 8 * kTileBytes, shared.keys[1]);
        }
        if (kAhead && !is_last) {  // scores of the next pair's first page, after P₁·V₁
          const uint32_t parity = uses[0]++ & 1U;
          begin_first_scores(page + 2, parity);
          wgmma_wait<1>();
          mbarrier_arrive_cluster<kCluster>(&shared.empty[1][1], lane);
          end_first_scores(parity);
        }
        wgmma_wait<0>();
        wgmma_pin(out);
        if constexpr (kAhead) wgmma_pin(s);
        if (kAhead && !is_last) {
          free_first_scores(page + 4 >= piece.end_page);
        } else if (has_second) {
          mbarrier_arrive_cluster<kCluster>(&shared.empty[1][1], lane);
        }
      } else {
        const auto begin_first_values = [&] {  // issues P₀·V₀ of half the keys and does not wait for it
          mbarrier_wait(&shared.first_weights, pairs & 1U);
          const float2 factors = {shared.rescale[0][own_row], shared.rescale[0][own_row + 8]};
          sum[0] *= factors.x;
          sum[1] *= factors.y;
          rescale(out, factors);
          add_values<kF16, 0, 2>(out, shared.weights, shared.keys[0] + kHalfTiles * kTileBytes);
        };
        const auto end_first_values = [&] {
          add_values<kF16, 2, 4>(out, shared.weights, shared.keys[0] + kHalfTiles * kTileBytes);
        };
        if (has_second) {
          const uint32_t parity = uses[1]++ & 1U;
          const int valid = piece.num_keys - first_key - kPageSize;
          if (!kWidened)
            zero_records<kMasks>(args, piece.seq, shared.keys[1], shared.full[1], parity, valid,
                                 kWithinRight);
          make_scores<false, kF16, kWidened, 0, kTiles>(s, shared.queries, held, shared.keys[1],
                                                        shared.full[1], parity);
          wgmma_wait<0>();
          wgmma_pin(s);
          if (is_last && lane == 0) mbarrier_arrive(&shared.q_empty);
          if (first_key + 2 * kPageSize > all_visible)
            mask<kMasks>(args, piece, s, visible, first_key + kPageSize);
          const float2 top = largest(s);
          begin_first_values();
          maximum[0] = shared.maximum[own_row];
          maximum[1] = shared.maximum[own_row + 8];
          const float2 later = renew(top, maximum, args.scale_log2);
          make_weights(s, maximum, later, sum, args.scale_log2);
          end_first_values();
          pack<kF16>(a, s);
          named_barrier_sync(kWithinRight, 128);  // all four warps have read the rope tile
          if (first_of_row) {
            shared.maximum[own_row] = maximum[0];
            shared.maximum[own_row + 8] = maximum[1];
            shared.rescale[1][own_row] = later.x;
            shared.rescale[1][own_row + 8] = later.y;
          }
          store_weights(shared.keys[1] + 8 * kTileBytes, a);
          if (is_last) publish_sums(sum, shared.sums[pieces & 1U][1], own_row);
          mbarrier_arrive(&shared.second_weights);
          wgmma_wait<0>();
          wgmma_pin(out);
          mbarrier_arrive_cluster<kCluster>(&shared.empty[0][2], lane);
          rescale(out, later);
          add_values<kF16>(out, a, shared.keys[1] + kHalfTiles * kTileBytes);
          wgmma_wait<0>();
          wgmma_pin(a);
          wgmma_pin(out);
          mbarrier_arrive_cluster<kCluster>(&shared.empty[1][0], lane);
        } else {
          if (lane == 0) mbarrier_arrive(&shared.q_empty);  // the last pair
          begin_first_values();
          end_first_values();
          wgmma_wait<0>();
          wgmma_pin(out);
          mbarrier_arrive_cluster<kCluster>(&shared.empty[0][2], lane);
          publish_sums(sum, shared.sums[pieces & 1U][1], own_row);
          mbarrier_arrive(&shared.second_weights);
        }
      }
    }

    end_piece<kIsLeft, Out>(args, piece, first_row, out, pieces, shared);
  });
}

template <KvFormat kFormat, int kCluster, bool kMasks>
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
    mbarrier_init(&shared.q_widened, kComputeThreads);
    for (int p = 0; p < 2; ++p) {
      for (Mbarrier& full : shared.full[p]) mbarrier_init(&full, kWidened ? 4 : 1);
      for (Mbarrier& empty : shared.empty[p]) mbarrier_init(&empty, 4 * kCluster);
    }
    mbarrier_init_fence();
    tma_prefetch_map(&q);
    tma_prefetch_map(&pool);
  }
  __syncthreads();
  // The other block's barriers must be initialised before any thread arrives at them. Each computing thread
  // waits for this before its work, and the loading thread only after it has read its first page ids.
  if constexpr (kCluster > 1) cluster_arrive_unaligned();
  // Widening needs registers in the loading warpgroup.
  constexpr int kComputeRegisters = kWidened ? 208 : 232;
  constexpr int kLoadRegisters = kWidened ? 88 : 40;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == 0) {
    set_max_registers_up<kComputeRegisters>();
    if constexpr (kCluster > 1) cluster_wait_unaligned();
    pdl_wait();
    pdl_launch_dependents();  // the next grid's blocks have no room until blocks of this one end
    compute<true, kFormat, kCluster, kMasks>(args, part, first_row, shared);
  } else if (warpgroup == 1) {
    set_max_registers_up<kComputeRegisters>();
    if constexpr (kCluster > 1) cluster_wait_unaligned();
    pdl_wait();
    pdl_launch_dependents();  // the next grid's blocks have no room until blocks of this one end
    compute<false, kFormat, kCluster, kMasks>(args, part, first_row, shared);
  } else {
    set_max_registers_down<kLoadRegisters>();
    if constexpr (!kWidened) {
      if (threadIdx.x == kComputeThreads) {
        produce_pages<kCluster>(args, &pool, part, first_row, shared);
      } else {
        if constexpr (kCluster > 1) cluster_wait_unaligned();
      }
      if (threadIdx.x == kComputeThreads + 32) produce_queries(args, &q, part, first_row, shared);
    } else {
      produce_widened<kFormat == KvFormat::kFp8E4M3, kMasks>(args, &q, part, first_row, shared);
    }
  }
  if constexpr (kCluster > 1) {
    __syncwarp();
    cluster_sync();  // the other block may still arrive at barriers here
  }
}

template <KvFormat kFormat, int kCluster, bool kMasks>
void launch_tiles(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  const CUtensorMap q = decode_query_map<kFormat>(args, kRows);
  CUtensorMap pool{};
  if constexpr (kFormat == KvFormat::kBF16 || kFormat == KvFormat::kF16)
    pool = decode_page_map<kFormat>(args, kPageSize / kCluster);
  const dim3 grid(static_cast<unsigned>(geometry.num_parts * geometry.num_tiles));
  launch_kernel<mla_decode_tiles_kernel<kFormat, kCluster, kMasks>>(launch, grid, dim3(kThreads),
                                                                    kSharedBytes, args, q, pool);
}

}  // namespace hadal::cuda::tiles

namespace hadal::cuda {

template <KvFormat kFormat, bool kMasks>
void mla_decode_tiles(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  if constexpr (kFormat == KvFormat::kBF16 || kFormat == KvFormat::kF16) {
    if (geometry.num_tiles % 2 == 0)  // two tiles of a part share what they load
      return tiles::launch_tiles<kFormat, 2, kMasks>(args, geometry, launch);
  }
  tiles::launch_tiles<kFormat, 1, kMasks>(args, geometry, launch);
}

}  // namespace hadal::cuda
