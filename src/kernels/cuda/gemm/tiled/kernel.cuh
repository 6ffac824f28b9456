// Computes y[rows, n] = x · W[e]ᵀ on the tensor cores for many rows: dense (one "expert") or over the experts
// of a MoE layer, in bf16, or in FP8 or INT8 with scales of blocks or of rows and channels.
// gemm/tiled/linear.cuh and experts/grouped/tiled.cuh use it. docs/kernels/cuda-wgmma-gemm.md explains the
// design.
//
// Grid: it is persistent, with clusters of kCluster blocks and one block per multiprocessor. A cluster
// computes the tiles (kBlockM rows × kCluster·kBlockN columns) number cluster_idx, cluster_idx +
// num_clusters, … in the order of gemm/tiled/tiles.cuh; block r of it has the r-th kBlockN columns. With
// kShares, a block may compute only some of the steps of the tiles of a last, partial round
// (gemm/tiled/rest.cuh); blocks then wait for each other, so the whole grid must be resident at once. Rows of
// a tile after the expert's last row are not stored. All threads call pdl_wait; with kEarlyW only the
// producer's thread does, if it has a tile.
//
// Warpgroup 0 is the producer (one thread of warp 0 walks the tiles and issues every copy); the other two are
// consumers. If the consumers' parts of a tile lie one below the other, wave v of consumer c has all columns
// of the rows 64·(2v + c) … + 63 of the tile, so that a tile with few rows costs one wave. If the parts lie
// side by side (kBeside), wave v of consumer c has the rows 64·v … + 63 and the columns kColumns·c … +
// kColumns − 1. A step of k is 128 bytes of a row: 64 bf16 or 128 codes (one block of scales). Scales of rows
// and channels multiply the finished sums.
//
// Barriers       arrivals                       signalled by      waited for by
//   full[stage]  1 + bytes of x, W, x's scales  producer, TMA     consumers
//                blocks: + 1, W's scales     cp.async
//   empty[stage] 8 warps · kCluster             consumer warps    producers of the cluster: each loads a
//                                                                 share of x into all blocks
//   lead[stage]  4 (kLead)                      consumer 0        consumer 1, where it waited for data
// full[stage] and lead[stage] flip their parity once per round of the ring. A waiting thread is never a round
// behind, because the next round cannot begin before this round is released. A producer thread has 40
// registers, a consumer thread has 232. A consumer thread holds kColumns/2 sums per wave; if sums are
// promoted, as many partial sums for one block of k (twice as many with kAhead); and with INT8 channel
// scales, kColumns/4 scales of columns. Shared memory holds kStages · (x, W, scales of x, and 32 B for the
// tile's place and the scales of W), 2 KB per consumer warp to turn accumulators into rows, barriers, and the
// experts' first rows and first tiles. With kHold, a consumer also stores its rows of y through its own rows
// of x in the tile's last stage, which is released in the next tile's first step.
#pragma once

#include "kernels/cuda/choice.h"
#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/sanitize.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/gemm/tiled/config.cuh"
#include "kernels/cuda/gemm/tiled/multiply.cuh"
#include "kernels/cuda/gemm/tiled/rest.cuh"
#include "kernels/cuda/gemm/tiled/scales.cuh"
#include "kernels/cuda/gemm/tiled/store.cuh"
#include "kernels/cuda/gemm/tiled/tiles.cuh"

namespace hadal::cuda {
namespace wgmma_gemm {

// Does the work of the producer's thread.
template <class C>
__device__ __forceinline__ void produce(const CUtensorMap& x_map, const CUtensorMap& w_map,
                                        const CUtensorMap& scale_map, const WgmmaGemmParams& p,
                                        const Shared<C>& shared, int rank) {
  constexpr int kShare = C::kBlockM / C::kCluster;  // rows of x that this block loads for the cluster
  constexpr L2Policy kPolicyW = C::kStreamW ? L2Policy::kEvictFirst : L2Policy::kNormal;
  TileSchedule<C> schedule;
  RingPosition<C::kStages> ring;
  Tile tile;
  Steps steps;
  bool first = true;
  while (schedule.next(p, shared.row_starts(), tile, steps)) {
    const float* w_scales[C::kTileBlocks];
#pragma unroll
    for (int b = 0; b < C::kTileBlocks; ++b) {
      const int block = min(tile.n_begin / 128 + b, (p.n - 1) / 128);
      w_scales[b] = p.w_scales + tile.expert * p.expert_scale_stride + block * p.w_scale_stride;
    }
    const auto load_w = [&](int step) {
      if (step == steps.first) {
        *shared.tile(ring.slot) =
            C::kShares ? make_int4(tile.row_begin + steps.kind, steps.count, tile.n_begin, steps.number)
                       : make_int4(tile.row_begin, tile.row_end, tile.n_begin, tile.expert);
      }
      Mbarrier* full = shared.full(ring.slot);
      mbarrier_arrive_expect_tx(full, C::kArrivingBytes);
      tma_load_3d(shared.w(ring.slot), &w_map, full, step * C::kStepK, tile.n_begin, tile.expert, kPolicyW);
      random_delay(DelayedRole::kProducer);
      if constexpr (C::kBlockScales) copy_floats_and_arrive(shared.w_scales(ring.slot), w_scales, step, full);
    };
    const auto load_x = [&](int step) {
      Mbarrier* full = shared.full(ring.slot);
      const int k = step * C::kStepK;
      uint8_t* x = shared.x(ring.slot) + rank * kShare * 128;
      if constexpr (C::kCluster == 1) {
        tma_load_2d(x, &x_map, full, k, tile.row_begin);
      } else {
        tma_load_2d_multicast(x, &x_map, full, k, tile.row_begin + rank * kShare,
                              static_cast<uint16_t>((1U << C::kCluster) - 1U));
      }
      if constexpr (C::kBlockScales) {
#pragma unroll
        for (int b = 0; b < C::kScaleBoxes; ++b) {
          tma_load_2d(shared.x_scales(ring.slot) + b * (C::kScaleBoxBytes / 4), &scale_map, full,
                      tile.row_begin / 4 * 4 + b * C::kBoxRows, step);
        }
      }
    };
    int step = steps.first;
    const int end = steps.first + steps.count;
    if (C::kEarlyW && first) {
      // In the first round of the ring all stages are free.
      first = false;
      const int early = min(end, steps.first + C::kStages);
      for (; step < early; ++step, ring.advance()) load_w(step);
      pdl_wait();
      ring = {};
      for (step = steps.first; step < early; ++step, ring.advance()) load_x(step);
    }
    for (; step < end; ++step, ring.advance()) {
      random_delay(DelayedRole::kProducer);
      mbarrier_wait(shared.empty(ring.slot), ring.producer_parity());
      load_w(step);
      random_delay(DelayedRole::kProducer);
      load_x(step);
    }
  }
}

template <class C>
__global__ void __cluster_dims__(C::kCluster, 1, 1) __launch_bounds__(C::kThreads, 1)
    wgmma_gemm_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                      const __grid_constant__ CUtensorMap scale_map,
                      const __grid_constant__ CUtensorMap y_map, const __grid_constant__ WgmmaGemmParams p) {
  extern __shared__ uint8_t raw_shared[];
  const Shared<C> shared{raw_shared + ((1024 - (shared_address(raw_shared) & 1023U)) & 1023U)};
  const int warp_idx = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int rank = C::kCluster == 1 ? 0 : static_cast<int>(cluster_rank());
  int* row_starts = shared.row_starts();
  int* tile_starts = row_starts + p.num_experts + 1;
  if (threadIdx.x == 0) {
    tma_prefetch_map(&x_map);
    tma_prefetch_map(&w_map);
    if constexpr (C::kCopyOut) tma_prefetch_map(&y_map);
    if constexpr (C::kBlockScales) tma_prefetch_map(&scale_map);
    for (int s = 0; s < C::kStages; ++s) {
      mbarrier_init(shared.full(s), C::kBlockScales ? 2 : 1);
      mbarrier_init(shared.empty(s), 4 * C::kConsumers * C::kCluster * kWarpArrivals);
      mbarrier_init(shared.lead(s), 4);
    }
    mbarrier_init_fence();
  }
  if constexpr (!C::kEarlyW) pdl_wait();
  make_tables<C>(p, row_starts, tile_starts);
  if constexpr (C::kCluster > 1) cluster_sync();  // the barriers of the whole cluster are initialised

  if (warp_idx < 4) {
    set_max_registers_down<C::kProducerRegisters>();
    if (warp_idx == 0 && elect_one()) {
      produce<C>(x_map, w_map, scale_map, p, shared, rank);
      pdl_launch_dependents();
    }
    __syncwarp();
  } else {
    set_max_registers_up<C::kConsumerRegisters>();
    const int consumer = warp_idx / 4 - 1;
    const int row_group = C::kBeside ? 0 : consumer;
    const int column_group = C::kBeside ? consumer : 0;
    const int warp_row = 64 * row_group + 16 * (warp_idx % 4);  // in the tile, of wave 0
    uint8_t* staging = shared.staging(warp_idx - 4);
    RingPosition<C::kStages> ring;
    Place<C> place;
    place.consumer = consumer;
    place.lane = lane;
    // These values are equal in all lanes; after a shuffle the compiler keeps them in uniform registers.
    place.x = __shfl_sync(0xffffffffU, wgmma_k_major_low(shared.x(0) + row_group * 8192), 0);
    place.w = __shfl_sync(0xffffffffU, wgmma_k_major_low(shared.w(0) + column_group * C::kColumns * 128), 0);
    place.first_block = column_group * (C::kColumns / 128);
    int held = -1;  // kHold: the stage through which the previous tile is stored
    const auto release_held = [&] {
      if (held < 0) return;
      if (lane == 0) bulk_store_wait_read<0>();
      release<C>(shared, static_cast<uint32_t>(held), lane);
    };
    for (int left = num_tiles<C>(p, row_starts); left > 0; --left) {
      random_delay_of_warp(delayed_consumer(consumer));
      mbarrier_wait(shared.full(ring.slot), ring.parity());
      const int4 tile = *shared.tile(ring.slot);
      // With kShares the two lowest bits of the tile's first row hold the kind of the steps, and there is
      // only one expert. A shuffle, as above, tells the compiler that the loops over steps are the same in
      // all lanes.
      const int row_begin = C::kShares ? tile.x / 4 * 4 : tile.x;
      const int kind = C::kShares ? __shfl_sync(0xffffffffU, tile.x % 4, 0) : Steps::kWhole;
      const int num_steps = C::kShares ? __shfl_sync(0xffffffffU, tile.y, 0) : p.num_k_steps;
      const int row_end = C::kShares ? p.rows : tile.y;
      const int expert = C::kShares ? 0 : tile.w;
      const int n_begin = tile.z + column_group * C::kColumns;
      place.row = row_begin % 4 + warp_row + lane / 4;
      place.first_parts = (128 - tile.z % 128) / C::kScaleColumns;
      typename C::Sum sums[C::kWaves][C::kSums];
      EndScales<C> scales;
      scales.template load<false>(p, expert, row_begin + warp_row + lane / 4, n_begin, lane);
      const bool all_waves = C::kWaves == 1 || row_end - row_begin > C::kWaveRows;
      const auto store_wave = [&](int v, uint32_t stage) {
        const int row = row_begin + C::kWaveRows * v + warp_row;
        if constexpr (C::kCopyOut) {
          // After this barrier the products of all four warps have read their rows of x.
          if constexpr (C::kHold) named_barrier_sync(1 + consumer, 128);
          copy_rows_out<C>(y_map, p, staging, shared.x(stage) + warp_row * 128, sums[v], scales, v, row,
                           row_end, n_begin, lane);
        } else {
          store_rows<C>(p, staging, sums[v], scales, v, row, row_end, n_begin, lane);
        }
      };
      uint32_t stage = 0;
      if constexpr (C::kAhead) {
        multiply_ahead<C>(shared, ring, num_steps, place, sums[0]);
      } else if constexpr (C::kTight) {
        const auto store_first = [&](uint32_t last_stage) {
          if (C::kHold && C::kWaves > 1 && kind == Steps::kWhole) store_wave(0, last_stage);
        };
        const auto store_none = [](uint32_t /*last_stage*/) {};
        if (all_waves)
          stage =
              multiply_tight<C, C::kWaves>(shared, ring, num_steps, place, sums, release_held, store_first);
        else
          stage = multiply_tight<C, 1>(shared, ring, num_steps, place, sums, release_held, store_none);
      } else if constexpr (C::kPromotes) {
        if (all_waves)
          multiply_promoting<C, C::kWaves>(shared, ring, num_steps, place, sums);
        else
          multiply_promoting<C, 1>(shared, ring, num_steps, place, sums);
      } else {
        if (all_waves)
          multiply_whole<C, C::kWaves>(shared, ring, num_steps, place, sums);
        else
          multiply_whole<C, 1>(shared, ring, num_steps, place, sums);
      }
      if constexpr (C::kShares) {
        if (kind == Steps::kOwn) {
          add_tail<C>(p, tile.w, rank, all_waves, sums);
        } else if (kind == Steps::kTail) {
          store_tail<C>(p, tile.w, rank, all_waves, sums);
        }
      }
      scales.template load<true>(p, expert, row_begin + warp_row + lane / 4, n_begin, lane);
#pragma unroll
      for (int v = 0; v < C::kWaves; ++v) {
        const bool stored = C::kHold && C::kWaves > 1 && v == 0 && all_waves && kind == Steps::kWhole;
        if (!stored && kind != Steps::kTail) store_wave(v, stage);
      }
      // The shuffle again makes the stage uniform, which the compiler cannot prove after the stores.
      if constexpr (C::kHold) held = __shfl_sync(0xffffffffU, static_cast<int>(stage), 0);
    }
  }
  // This wait is not in the consumers' branch, because with code after that branch's loop the compiler does
  // not use the registers of setmaxnreg.
  if constexpr (C::kCopyOut) bulk_store_wait<0>();  // lane 0 of each consumer warp has stored
  if constexpr (C::kCluster > 1)
    cluster_sync();  // no block ends while another may still write to its shared memory
}

}  // namespace wgmma_gemm

// Holds the operands of a launch: x [rows, k] (rows x_stride apart), W [num_experts, n, k] (rows
// w_row_stride, experts expert_stride apart); k is the padded width of 8-bit codes. The scales of x have the
// layout of QuantizedRows.
template <typename T>
struct WgmmaGemmOperands {
  const T* x = nullptr;
  int64_t x_stride = 0;
  const float* x_scales = nullptr;
  int64_t x_scale_stride = 0;
  const T* w = nullptr;
  int64_t w_row_stride = 0;
  int64_t expert_stride = 0;
  int64_t k = 0;
};

// Returns the operands of a linear (gemm/gemm.h) or of experts, `expert_stride` apart (experts/experts.h).
template <typename T, class Params>
WgmmaGemmOperands<T> wgmma_operands(const Params& p, int64_t expert_stride) {
  WgmmaGemmOperands<T> o;
  if constexpr (sizeof(T) == 1) {
    o.x = reinterpret_cast<const T*>(p.x_quantized.codes);
    o.x_stride = p.x_quantized.stride;
    o.x_scales = p.x_quantized.scales;
    o.x_scale_stride = p.x_quantized.scale_stride;
  } else {
    o.x = static_cast<const T*>(p.x);
    o.x_stride = p.x_stride;
  }
  o.w = static_cast<const T*>(p.w.data);
  o.w_row_stride = p.w.row_stride;
  o.expert_stride = expert_stride;
  o.k = padded_k(p.w.type, p.w.k);
  return o;
}

template <class C>
void launch_wgmma_gemm(const WgmmaGemmOperands<typename C::Element>& o, WgmmaGemmParams p,
                       const Launch& launch) {
  constexpr int kStepK = C::kStepK;
  p.num_k_steps = static_cast<int>((o.k + kStepK - 1) / kStepK);
  p.x_scales = o.x_scales;
  const CUtensorMap x_map =
      make_tensor_map<2>(o.x, {o.k, p.rows}, {o.x_stride}, {kStepK, C::kBlockM / C::kCluster});
  const CUtensorMap w_map = make_tensor_map<3>(o.w, {o.k, p.n, p.num_experts},
                                               {o.w_row_stride, o.expert_stride}, {kStepK, C::kBlockN, 1});
  CUtensorMap y_map = x_map;
  if constexpr (C::kCopyOut) y_map = make_tensor_map<2>(p.y, {p.n, p.rows}, {p.y_stride}, {64, 16});
  CUtensorMap scale_map = x_map;
  if constexpr (C::kBlockScales) {
    scale_map = make_tensor_map<2>(o.x_scales, {p.rows, p.num_k_steps}, {o.x_scale_stride}, {C::kScaleBox, 1},
                                   CU_TENSOR_MAP_SWIZZLE_NONE);
  }
  const int blocks = launch.num_sms / C::kCluster * C::kCluster;
  launch_kernel<wgmma_gemm::wgmma_gemm_kernel<C>>(launch, dim3(static_cast<unsigned>(blocks)),
                                                  dim3(C::kThreads), C::shared_bytes(p.num_experts), x_map,
                                                  w_map, scale_map, y_map, p);
}

}  // namespace hadal::cuda
