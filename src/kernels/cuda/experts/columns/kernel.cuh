// Computes yᵀ = W[e] · xᵀ for the experts of a layer with many rows, in bf16 or float16. The weights' rows
// are the M side of the tensor cores' instructions and the tokens the N side, whose size is a multiple of 16.
// An expert with 390 rows is then two tiles of 208 and 192 tokens, which compute 400 rows; tiles of 128 rows
// would compute 512.
//
// Grid: persistent clusters of two blocks, with one block per multiprocessor. A cluster's tile has two
// neighbouring blocks of 128 rows of W and up to kMost tokens. Block r of the cluster computes the r-th 128
// rows of W, and loads the r-th half of the tokens into both blocks. The rows of an expert are cut into tiles
// of equal width, a multiple of 16; only the last may be narrower. Tiles are ordered by expert, with the
// experts of the widest tiles first, and within an expert all tiles of tokens come before the next rows of W.
// Tiles are dealt to the clusters in turn; in every second round the order of the clusters is reversed.
//
// If activated, a block's 128 rows are 64 features, with 8 rows of gate and 8 rows of up alternating; one
// five-dimensional box loads them in this order.
//
// In warpgroup 0, warp 0 is the producer (one thread), warps 1 to 3 are writers. Warpgroups 1 and 2 are
// consumers. Consumer c has rows 64·c … 64·c + 63 of the block's 128, and all tokens of the tile. It leaves
// its sums in 16 bits for the writers, which turn them into y (activated: silu(gate) ⊙ up) while the products
// of the next tile run. A step of k is 64.
//
// Barriers       arrivals                       signalled by      waited for by
//   full[stage]  1 + bytes of W and x           producer, TMA     consumers
//   empty[stage] 8 warps · 2 blocks             consumer warps    producers of the cluster
//   staged       8 warps                        consumer warps    writers
//   written      3 warps                        writers           consumers
// Phases: round i of a slot is phase i of its barriers. Before filling it, a thread waits for parity i ^ 1
// (in round 0 this returns at once); before reading it, for parity i. `staged` and `written` are a ring of
// one slot with one round per tile. Registers: producer and writers 88, consumers 208 (sums: tokens / 2).
// Shared memory holds stages of 16 KB of W and 128 bytes per token of x, 256 bytes per token of results, the
// barriers, and the experts' first rows and first tiles.
#pragma once

#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/sanitize.cuh"
#include "kernels/cuda/experts/columns/tile.cuh"

namespace hadal::cuda::columns {

template <class C>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    expert_columns_kernel(const __grid_constant__ Maps<C> maps, const __grid_constant__ Params p) {
  extern __shared__ uint8_t raw_shared[];
  const Shared<C> shared{raw_shared + ((1024 - (shared_address(raw_shared) & 1023U)) & 1023U)};
  const int warp_idx = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int rank = static_cast<int>(cluster_rank());
  int* tables = shared.tables();
  if (threadIdx.x == 0) {
    tma_prefetch_map(&maps.w);
    for (int s = 0; s < C::kStages; ++s) {
      mbarrier_init(shared.full(s), 1);
      mbarrier_init(shared.empty(s), 8 * kCluster * kWarpArrivals);
    }
    mbarrier_init(shared.staged(), 8 * kWarpArrivals);
    mbarrier_init(shared.written(), kWriters * kWarpArrivals);
    mbarrier_init_fence();
  }
  pdl_wait();
  make_tables<C>(p, tables);
  cluster_sync();  // the barriers of the whole cluster are ready
  Schedule schedule;
  Tile tile;

  if (warp_idx < 4) {
    set_max_registers_down<88>();
    if (warp_idx == 0) {
      if (elect_one()) {
        RingPosition<C::kStages> ring;
        while (schedule.next(p, tables, rank, tile)) {
          produce_tile(p, shared, maps, tile, tables[tile.expert], rank, ring);
        }
        pdl_launch_dependents();
      }
      __syncwarp();
    } else {
      RingPosition<1> ring;
      while (schedule.next(p, tables, rank, tile)) {
        random_delay_of_warp(DelayedRole::kWriter);
        mbarrier_wait(shared.staged(), ring.parity());
        write_tile(p, shared, tile, warp_idx - 1, lane);
        __syncwarp();
        mbarrier_arrive_warp(shared.written(), lane);
        ring.advance();
      }
    }
  } else {
    set_max_registers_up<208>();
    const Consumer own{rank, warp_idx / 4 - 1, warp_idx % 4, lane};
    RingPosition<C::kStages> ring;
    RingPosition<1> staging_ring;
    bool more = schedule.next(p, tables, rank, tile);
    while (more) {
      more = consume_any<C, kTokenStep, C::kMost>(p, shared, own, schedule, tile, ring, staging_ring);
    }
  }
  cluster_sync();  // no block ends while another may still write to it
}

}  // namespace hadal::cuda::columns
