// Computes y[rows, n] = x · Wᵀ with 8-bit weights for shapes with fewer tiles than multiprocessors: the
// blocks of a cluster share one tile of kBlockM × kBlockN, and each has a part of k. gemm/tiled/linear.cuh
// uses it.
//
// Grid: it has tiles · kSplits blocks; consecutive clusters compute all row tiles of a column tile, then
// those of the next column tile. Block r of a cluster multiplies the steps of k from r·per on as
// gemm/tiled/kernel.cuh does (one producer, two consumers one below the other, a ring). It then sends its
// sums to the blocks that finish them. Block r finishes the r-th share of every thread's sums, which is the
// r-th share of the tile's columns. The sums are added in the order of the blocks, so the result does not
// depend on which block is first.
//
// Barriers       arrivals                         signalled by      waited for by
//   full[stage]  as in gemm/tiled/kernel.cuh
//   empty[stage] 8 warps                          consumer warps    the producer
//   joined       1 + bytes of the others' sums    thread 0, st.async  consumers, once
// Registers and shared memory are those of gemm/tiled/kernel.cuh; received sums use the memory of the
// output's buffers.
#pragma once

#include "kernels/cuda/gemm/tiled/kernel.cuh"

namespace hadal::cuda {
namespace wgmma_gemm {

// Stores four words in the shared memory of block `block` of the cluster; that block's barrier counts them.
__device__ __forceinline__ void store_async(void* shared, Mbarrier* barrier, uint32_t block, uint32_t a,
                                            uint32_t b, uint32_t c, uint32_t d) {
  asm volatile(
      "{\n.reg .b32 to, at;\n"
      "mapa.shared::cluster.u32 to, %0, %2;\n"
      "mapa.shared::cluster.u32 at, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [to], {%3, %4, %5, %6}, [at];\n}" ::
          "r"(shared_address(shared)),
      "r"(shared_address(barrier)), "r"(block), "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}

// The producer's thread calls this. It loads `count` steps from `first` on. The first weights are loaded
// before pdl_wait, because no kernel writes weights.
template <class C>
__device__ __forceinline__ void produce_part(const CUtensorMap& x_map, const CUtensorMap& w_map,
                                             const CUtensorMap& scale_map, const WgmmaGemmParams& p,
                                             const Shared<C>& shared, const Tile& tile, int first,
                                             int count) {
  const float* w_scales[C::kTileBlocks];
#pragma unroll
  for (int b = 0; b < C::kTileBlocks; ++b)
    w_scales[b] = p.w_scales + min(tile.n_begin / 128 + b, (p.n - 1) / 128) * p.w_scale_stride;
  const auto load_w = [&](uint32_t stage, int step) {
    Mbarrier* full = shared.full(stage);
    mbarrier_arrive_expect_tx(full, C::kArrivingBytes);
    tma_load_3d(shared.w(stage), &w_map, full, step * C::kStepK, tile.n_begin, 0);
    random_delay(DelayedRole::kProducer);
    if constexpr (C::kBlockScales) copy_floats_and_arrive(shared.w_scales(stage), w_scales, step, full);
  };
  const auto load_x = [&](uint32_t stage, int step) {
    Mbarrier* full = shared.full(stage);
    tma_load_2d(shared.x(stage), &x_map, full, step * C::kStepK, tile.row_begin);
    if constexpr (C::kBlockScales) {
#pragma unroll
      for (int b = 0; b < C::kScaleBoxes; ++b) {
        tma_load_2d(shared.x_scales(stage) + b * (C::kScaleBoxBytes / 4), &scale_map, full,
                    tile.row_begin + b * C::kBoxRows, step);
      }
    }
  };
  const int early = min(count, C::kStages);
  for (int i = 0; i < early; ++i) load_w(i, first + i);
  pdl_wait();
  for (int i = 0; i < early; ++i) load_x(i, first + i);
  RingPosition<C::kStages> ring;
  ring.phase = 1;
  for (int i = early; i < count; ++i) {
    random_delay(DelayedRole::kProducer);
    mbarrier_wait(shared.empty(ring.slot), ring.producer_parity());
    load_w(ring.slot, first + i);
    load_x(ring.slot, first + i);
    ring.advance();
  }
}

// Every consumer thread calls this. It sends to each other block the sums that the other block finishes, and
// returns this block's share with the received sums added. `received` [kSplits − 1][kShare / 4][threads]
// holds the other blocks' sums in the order of the blocks.
template <class C>
__device__ __forceinline__ void join(const typename C::Sum (&sums)[C::kSums], uint4* received,
                                     Mbarrier* joined, int rank, int thread,
                                     typename C::Sum (&total)[C::kShare]) {
  constexpr int kThreads = 128 * C::kConsumers;
  constexpr int kFours = C::kShare / 4;
  uint32_t own[C::kShare];
#pragma unroll
  for (int owner = 0; owner < C::kSplits; ++owner) {
    const auto* part = &sums[owner * C::kShare];
    if (owner == rank) {
#pragma unroll
      for (int i = 0; i < C::kShare; ++i) own[i] = bits_of(part[i]);
      continue;
    }
    uint4* to = received + (rank < owner ? rank : rank - 1) * kFours * kThreads + thread;
#pragma unroll
    for (int i = 0; i < C::kShare; i += 4) {
      store_async(to + i / 4 * kThreads, joined, static_cast<uint32_t>(owner), bits_of(part[i]),
                  bits_of(part[i + 1]), bits_of(part[i + 2]), bits_of(part[i + 3]));
    }
  }
  mbarrier_wait(joined, 0);
#pragma unroll
  for (int r = 0; r < C::kSplits; ++r) {
    const uint4* from = received + (r < rank ? r : r - 1) * kFours * kThreads + thread;
#pragma unroll
    for (int i = 0; i < C::kShare; i += 4) {
      uint4 four = make_uint4(own[i], own[i + 1], own[i + 2], own[i + 3]);
      if (r != rank) four = from[i / 4 * kThreads];
      const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto value = of_bits<typename C::Sum>(words[j]);
        total[i + j] = r == 0 ? value : total[i + j] + value;
      }
    }
  }
}

// Stores a thread's share of finished sums, from `row` and `column` on, in the layout of accumulators.
template <class C>
__device__ __forceinline__ void store_share(const WgmmaGemmParams& p,
                                            const typename C::Sum (&total)[C::kShare], int row, int column) {
#pragma unroll
  for (int i = 0; i < C::kShare; i += 2) {
    const int at_row = row + 8 * ((i >> 1) & 1);
    const int at = column + 8 * (i / 4);
    if (at_row >= p.rows || at >= p.n) continue;
    float2 value = make_float2(static_cast<float>(total[i]), static_cast<float>(total[i + 1]));
    if constexpr (C::kChannelScales) {
      const float x_scale = p.x_scales[at_row];
      const float2 w_scale = __ldg(reinterpret_cast<const float2*>(p.w_scales + at));
      const float2 bias = load_pair_if_any(p.bias, at, at);
      value.x = fmaf(value.x * x_scale, w_scale.x, bias.x);
      value.y = fmaf(value.y * x_scale, w_scale.y, bias.y);
    }
    *reinterpret_cast<uint32_t*>(p.y + static_cast<int64_t>(at_row) * p.y_stride + at) =
        pack_bf16(value.x, value.y);
  }
}

template <class C>
__global__ void __cluster_dims__(C::kSplits, 1, 1) __launch_bounds__(C::kThreads, 1)
    wgmma_split_kernel(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                       const __grid_constant__ CUtensorMap scale_map,
                       const __grid_constant__ WgmmaGemmParams p) {
  static_assert(!C::kBeside && (C::kAhead || !C::kPromotes));
  extern __shared__ uint8_t raw_shared[];
  const Shared<C> shared{raw_shared + ((1024 - (shared_address(raw_shared) & 1023U)) & 1023U)};
  const int warp_idx = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int rank = static_cast<int>(cluster_rank());
  Mbarrier* joined = shared.lead(0);
  if (threadIdx.x == 0) {
    tma_prefetch_map(&x_map);
    tma_prefetch_map(&w_map);
    if constexpr (C::kBlockScales) tma_prefetch_map(&scale_map);
    for (int s = 0; s < C::kStages; ++s) {
      mbarrier_init(shared.full(s), C::kBlockScales ? 2 : 1);
      mbarrier_init(shared.empty(s), 4 * C::kConsumers * kWarpArrivals);
    }
    mbarrier_init(joined, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect_tx(joined, (C::kSplits - 1) * C::kShareBytes);
  }
  __syncthreads();
  cluster_arrive();  // this block's `joined` is ready
  const int row_tiles = (p.rows + C::kBlockM - 1) / C::kBlockM;
  const int index = static_cast<int>(blockIdx.x) / C::kSplits;
  Tile tile;
  tile.row_begin = index % row_tiles * C::kBlockM;
  tile.row_end = p.rows;
  tile.n_begin = index / row_tiles * C::kBlockN;
  const int per = (p.num_k_steps + C::kSplits - 1) / C::kSplits;
  const int first = rank * per;
  const int count = max(0, min(per, p.num_k_steps - first));
  if (warp_idx < 4) {
    if (warp_idx == 0 && elect_one()) {
      produce_part<C>(x_map, w_map, scale_map, p, shared, tile, first, count);
      pdl_launch_dependents();
    }
    __syncwarp();
    cluster_wait();
    return;
  }
  const int consumer = warp_idx / 4 - 1;
  const int warp_row = 64 * consumer + 16 * (warp_idx % 4);
  RingPosition<C::kStages> ring;
  Place<C> place;
  place.consumer = consumer;
  place.lane = lane;
  place.x = __shfl_sync(0xffffffffU, wgmma_k_major_low(shared.x(0) + consumer * 8192), 0);
  place.w = __shfl_sync(0xffffffffU, wgmma_k_major_low(shared.w(0)), 0);
  place.first_block = 0;
  place.row = warp_row + lane / 4;
  place.first_parts = (128 - tile.n_begin % 128) / C::kScaleColumns;
  typename C::Sum sums[C::kWaves][C::kSums];
  if (count > 0) {
    if constexpr (C::kAhead)
      multiply_ahead<C>(shared, ring, count, place, sums[0]);
    else
      multiply_whole<C, 1>(shared, ring, count, place, sums);
  } else {
#pragma unroll
    for (int i = 0; i < C::kSums; ++i) sums[0][i] = 0;
  }
  random_delay_of_warp(delayed_consumer(consumer));
  cluster_wait();
  typename C::Sum total[C::kShare];
  join<C>(sums[0], reinterpret_cast<uint4*>(shared.staging(0)), joined, rank,
          static_cast<int>(threadIdx.x) - 128, total);
  store_share<C>(p, total, tile.row_begin + warp_row + lane / 4,
                 tile.n_begin + 2 * rank * C::kShare + 2 * (lane % 4));
}

}  // namespace wgmma_gemm

// Launches dense products (one expert).
template <class C>
void launch_wgmma_split(const WgmmaGemmOperands<typename C::Element>& o, WgmmaGemmParams p,
                        const Launch& launch) {
  constexpr int kStepK = C::kStepK;
  p.num_k_steps = static_cast<int>((o.k + kStepK - 1) / kStepK);
  p.x_scales = o.x_scales;
  const CUtensorMap x_map = make_tensor_map<2>(o.x, {o.k, p.rows}, {o.x_stride}, {kStepK, C::kBlockM});
  const CUtensorMap w_map =
      make_tensor_map<3>(o.w, {o.k, p.n, 1}, {o.w_row_stride, o.expert_stride}, {kStepK, C::kBlockN, 1});
  CUtensorMap scale_map = x_map;
  if constexpr (C::kBlockScales) {
    scale_map = make_tensor_map<2>(o.x_scales, {p.rows, p.num_k_steps}, {o.x_scale_stride}, {C::kScaleBox, 1},
                                   CU_TENSOR_MAP_SWIZZLE_NONE);
  }
  const int tiles = (p.rows + C::kBlockM - 1) / C::kBlockM * ((p.n + C::kBlockN - 1) / C::kBlockN);
  launch_kernel<wgmma_gemm::wgmma_split_kernel<C>>(launch, dim3(static_cast<unsigned>(tiles * C::kSplits)),
                                                   dim3(C::kThreads), C::shared_bytes(1), x_map, w_map,
                                                   scale_map, p);
}

}  // namespace hadal::cuda
