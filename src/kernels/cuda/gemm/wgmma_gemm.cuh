// y[rows, n] = x · W[e]ᵀ on the tensor cores for many rows: dense (one "expert") or over the experts of a MoE
// layer, in bf16 or in block-scaled FP8. Used by gemm/wgmma_fp8.cu and moe/grouped_wgmma*.cu. The why is in
// docs/kernels/cuda-wgmma-gemm.md.
//
// Grid: persistent; clusters of kCluster blocks, one block a multiprocessor. A cluster takes the tiles
// (128·kWaves rows × kCluster·kBlockN columns) number cluster_idx, cluster_idx + num_clusters, …; block r of
// it has the r-th kBlockN columns. Tiles go expert by expert; inside, 8 row tiles at a time, columns after
// columns, so that the tiles in flight share rows and weights in the L2. The row tiles of an expert start at
// its first row; what a tile computes behind the expert's last row is not stored.
//
// Warpgroups: 0 the producer (one thread of warp 0 issues every copy), 1 and 2 consumers. Wave v of consumer
// c has the rows 64·(2v + c) … + 63 of the tile, so that a tile with few rows costs one wave. Steps of k: 128
// bytes of a row, 64 bf16 or 128 e4m3 (one block of scales).
//
// Barriers       arrivals                       signalled by      waited for by
//   full[stage]  1 + bytes of x, W, x's scales  producer, TMA     consumers
//   empty[stage] 8 warps · kCluster blocks      consumer warps    producers of the cluster: each loads a
//                                                                 share of x into all blocks
//   named 1, 2   256 (FP8, in turns)            other consumer    consumer 0, 1: its turn to issue products
// Registers: producer 40, consumers 232 (float32 sums kBlockN/2 a wave, FP8: as many once more for the sum of
// one block of k).
// Shared memory: kStages · (16 KB·kWaves x, 128·kBlockN W, FP8: 640 B·kWaves scales), 2 KB a consumer warp to
// turn accumulators into rows, barriers, and the experts' first rows and first tiles.
#pragma once

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/common/wgmma.cuh"

namespace hadal::cuda {

struct WgmmaGemmParams {
  bf16* y = nullptr;  // [rows, n], rows y_stride apart; 16-byte aligned rows
  int64_t y_stride = 0;
  int rows = 0;
  int n = 0;  // a multiple of 8
  int num_k_steps = 0;
  const float* w_scales = nullptr;  // FP8: [n/128, scale_stride] of expert 0
  int64_t w_scale_stride = 0;
  int64_t expert_scale_stride = 0;
  const int32_t* expert_offsets = nullptr;  // [num_experts + 1] on the device; null: all rows are expert 0's
  int num_experts = 1;
};

template <typename T, int kWaves_, int kBlockN_, int kStages_, int kCluster_, int kStagingParts_>
struct WgmmaGemmConfig {
  using Element = T;
  static constexpr bool kFp8 = std::is_same_v<T, fp8_e4m3>;
  static constexpr int kWaves = kWaves_;
  static constexpr int kStages = kStages_;
  static constexpr int kCluster = kCluster_;
  static constexpr int kStagingParts =
      kStagingParts_;  // of 16 rows × 64 columns that a warp may have on the way out
  static constexpr int kBlockM = 128 * kWaves;
  static constexpr int kBlockN = kBlockN_;
  static constexpr int kSums = kBlockN / 2;  // accumulators of a thread and wave
  static_assert(kBlockN % 64 == 0 && kBlockN <= 256 && (!kFp8 || kBlockN <= 192));
  static constexpr int kStepK = 128 / static_cast<int>(sizeof(T));
  static constexpr int kConsumers = 2;
  // FP8: whether the partial sums of two blocks of k do not fit in registers, so that the consumers take
  // turns.
  static constexpr bool kInTurns = kFp8 && (kWaves + 2) * kSums > 192;
  static constexpr int kTurnAfter = 2;  // of the four instructions of a wave: the other consumer's turn
  static constexpr int kThreads = 128 * (kConsumers + 1);
  static constexpr int kGroupM = 8;  // row tiles that are gone through before the next columns

  static constexpr int kXBytes = kBlockM * 128;
  static constexpr int kWBytes = kBlockN * 128;
  // Scales of 128 rows of x come as a box of 132 that begins at a multiple of 4 rows, as copies must.
  static constexpr int kScaleBox = 132;
  static constexpr int kScaleBoxBytes = 640;  // the box and padding
  static constexpr int kScaleBytes = kFp8 ? kWaves * kScaleBoxBytes : 0;
  static constexpr int kArrivingBytes = kXBytes + kWBytes + (kFp8 ? kWaves * kScaleBox * 4 : 0);
  static constexpr int kWOffset = kStages * kXBytes;
  static constexpr int kStagingOffset = kWOffset + kStages * kWBytes;
  static constexpr int kScaleOffset = kStagingOffset + 4 * kConsumers * kStagingParts * 2048;
  static constexpr int kBarrierOffset = kScaleOffset + kStages * kScaleBytes;
  static constexpr int kExpertOffset = kBarrierOffset + 2 * kStages * 8;
  static constexpr int kMaxExperts = 512;

  // With the slack that aligns the start to 1024.
  static constexpr size_t shared_bytes(int num_experts) {
    return static_cast<size_t>(kExpertOffset) + 2 * static_cast<size_t>(num_experts + 1) * 4 + 1024;
  }
};

namespace wgmma_gemm {

struct Tile {
  int expert = 0;
  int row_begin = 0;  // of the tile
  int row_end = 0;    // of the expert
  int n_begin = 0;    // of this block's columns
};

// A value that the compiler must take as new here: what follows from it is computed again instead of being
// kept in registers beside the products' sums.
__device__ __forceinline__ int afresh(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// The tiles of one cluster in order. `row_starts` and `tile_starts` [num_experts + 1] in shared memory: first
// row and first row tile of each expert.
template <class C>
struct TileSchedule {
  int index = static_cast<int>(blockIdx.x) / C::kCluster;
  int expert = 0;

  __device__ __forceinline__ bool next(const WgmmaGemmParams& p, const int* row_starts, Tile& tile) {
    const int* tile_starts = row_starts + afresh(p.num_experts) + 1;
    constexpr int kColumns = C::kBlockN * C::kCluster;
    const int column_groups = (afresh(p.n) + kColumns - 1) / kColumns;
    if (index >= tile_starts[afresh(p.num_experts)] * column_groups) return false;
    while (index >= tile_starts[expert + 1] * column_groups) ++expert;
    const int first = tile_starts[expert];
    const int row_tiles = tile_starts[expert + 1] - first;
    const int local = index - first * column_groups;
    const int group = local / (C::kGroupM * column_groups);
    const int inside = local - group * C::kGroupM * column_groups;
    const int height = min(C::kGroupM, row_tiles - group * C::kGroupM);
    const int column_group = inside / height;
    const int row_tile = group * C::kGroupM + inside - column_group * height;
    const int rank = C::kCluster == 1 ? 0 : static_cast<int>(cluster_rank());
    tile.expert = expert;
    tile.row_begin = row_starts[expert] + row_tile * C::kBlockM;
    tile.row_end = row_starts[expert + 1];
    tile.n_begin = (column_group * C::kCluster + rank) * C::kBlockN;
    index += static_cast<int>(gridDim.x) / C::kCluster;
    return true;
  }
};

// All threads; ends with every thread seeing the tables.
template <class C>
__device__ __forceinline__ void make_tables(const WgmmaGemmParams& p, int* row_starts, int* tile_starts) {
  if (p.expert_offsets == nullptr) {
    if (threadIdx.x == 0) {
      row_starts[0] = 0;
      row_starts[1] = p.rows;
      tile_starts[0] = 0;
      tile_starts[1] = (p.rows + C::kBlockM - 1) / C::kBlockM;
    }
    __syncthreads();
    return;
  }
  for (int e = threadIdx.x; e <= p.num_experts; e += C::kThreads) row_starts[e] = p.expert_offsets[e];
  __syncthreads();
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    int total = 0;
    for (int base = 0; base < p.num_experts; base += 32) {
      const int e = base + lane;
      const int own =
          e < p.num_experts ? (row_starts[e + 1] - row_starts[e] + C::kBlockM - 1) / C::kBlockM : 0;
      int sum = own;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(0xffffffffU, sum, distance);
        if (lane >= distance) sum += other;
      }
      if (e < p.num_experts) tile_starts[e] = total + sum - own;
      total += __shfl_sync(0xffffffffU, sum, 31);
    }
    if (lane == 0) tile_starts[p.num_experts] = total;
  }
  __syncthreads();
}

template <class C>
struct Shared {
  uint8_t* base;

  __device__ __forceinline__ uint8_t* x(uint32_t stage) const { return base + stage * C::kXBytes; }
  __device__ __forceinline__ uint8_t* w(uint32_t stage) const {
    return base + C::kWOffset + stage * C::kWBytes;
  }
  __device__ __forceinline__ float* scales(uint32_t stage) const {
    return reinterpret_cast<float*>(base + C::kScaleOffset + stage * C::kScaleBytes);
  }
  __device__ __forceinline__ uint8_t* staging(int warp) const {
    return base + C::kStagingOffset + warp * C::kStagingParts * 2048;
  }
  __device__ __forceinline__ Mbarrier* full(uint32_t stage) const {
    return reinterpret_cast<Mbarrier*>(base + C::kBarrierOffset) + stage;
  }
  __device__ __forceinline__ Mbarrier* empty(uint32_t stage) const { return full(stage) + C::kStages; }
  __device__ __forceinline__ int* row_starts() const {
    return reinterpret_cast<int*>(base + C::kExpertOffset);
  }
};

// A consumer warp is done with a stage; tells every block of the cluster.
template <class C>
__device__ __forceinline__ void release(const Shared<C>& shared, uint32_t stage, int lane) {
  __syncwarp();
  mbarrier_arrive_cluster<C::kCluster>(shared.empty(stage), lane);
}

// Sums of kActive waves over all steps of k. Accumulators as wgmma.cuh says.
template <class C, int kActive>
__device__ __forceinline__ void multiply_bf16(const Shared<C>& shared, RingPosition<C::kStages>& ring,
                                              int steps, int consumer, int lane,
                                              float (&sums)[C::kWaves][C::kSums]) {
  uint32_t previous = 0;
  for (int step = 0; step < steps; ++step) {
    mbarrier_wait(shared.full(ring.slot), ring.parity());
    const uint64_t x = wgmma_k_major(shared.x(ring.slot) + consumer * 8192);
    const uint64_t w = wgmma_k_major(shared.w(ring.slot));
#pragma unroll
    for (int v = 0; v < kActive; ++v) wgmma_pin(sums[v]);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int v = 0; v < kActive; ++v)
        wgmma_bf16<C::kBlockN>(sums[v], wgmma_advance(x, v * 16384 + i * 32), wgmma_advance(w, i * 32),
                               step > 0 || i > 0);
    }
    wgmma_commit();
#pragma unroll
    for (int v = 0; v < kActive; ++v) wgmma_pin(sums[v]);
    wgmma_wait<1>();  // the products of the step before are done
    if (step > 0) release<C>(shared, previous, lane);
    previous = ring.slot;
    ring.advance();
  }
  wgmma_wait<0>();
#pragma unroll
  for (int v = 0; v < kActive; ++v) wgmma_pin(sums[v]);
  release<C>(shared, previous, lane);
}

// The weights' scales of one tile: a block has 128 columns, so 192 columns from a multiple of 64 on touch
// two.
template <class C>
struct WeightScales {
  const float* first;   // [num_k_steps] of the block of the tile's first column
  const float* second;  // of the next one
  bool middle_is_first;
  static constexpr int kBlocks = C::kBlockN > 128 ? 2 : 1;

  __device__ __forceinline__ WeightScales(const WgmmaGemmParams& p, const Tile& tile) {
    const int last = (p.n - 1) / 128;
    const int block = min(tile.n_begin / 128, last);
    const float* scales = p.w_scales + tile.expert * p.expert_scale_stride;
    first = scales + block * p.w_scale_stride;
    second = scales + min(block + 1, last) * p.w_scale_stride;
    middle_is_first = tile.n_begin % 128 == 0;
  }
  __device__ __forceinline__ void load(int step, float (&scales)[kBlocks]) const {
    scales[0] = __ldg(first + step);
    if constexpr (kBlocks == 2) scales[1] = __ldg(second + step);
  }
  // Of the tile's columns 64·part … + 63.
  __device__ __forceinline__ float of_part(const float (&scales)[kBlocks], int part) const {
    if constexpr (kBlocks == 1)
      return scales[0];
    else
      return part == 0 || (part == 1 && middle_is_first) ? scales[0] : scales[kBlocks - 1];
  }
};

// The scales that one thread needs for a block of k: of its two rows, for each 64 columns.
template <class C>
using PartScales = float[C::kBlockN / 64][2];

template <class C>
__device__ __forceinline__ void combine_scales(const WeightScales<C>& weights,
                                               const float (&blocks)[WeightScales<C>::kBlocks], float row_0,
                                               float row_8, PartScales<C>& scales) {
#pragma unroll
  for (int part = 0; part < C::kBlockN / 64; ++part) {
    const float w = weights.of_part(blocks, part);
    scales[part][0] = row_0 * w;
    scales[part][1] = row_8 * w;
  }
}

// sums += partial · scales: a block of k is taken over into float32.
template <class C>
__device__ __forceinline__ void promote(const float (&partial)[C::kSums], const PartScales<C>& scales,
                                        float (&sums)[C::kSums]) {
#pragma unroll
  for (int i = 0; i < C::kSums; ++i) sums[i] = fmaf(partial[i], scales[i / 32][(i >> 1) & 1], sums[i]);
}

// The same in FP8: the sum over each block of 128 of k is multiplied by the scales of its row and of the
// weights' block and added up in float32. One wave's partial sums fit beside the tile's sums, so a consumer's
// tensor work pauses while it takes them over. The consumers therefore issue in turns: when half of one's
// products are done, the other one's turn begins, and its products run while the first takes over. (Left
// alone, the tensor cores run both consumers' products interleaved, both end at the same time, and nothing
// runs while both take over.)
template <class C, int kActive>
__device__ __forceinline__ void multiply_fp8_in_turns(const Shared<C>& shared, RingPosition<C::kStages>& ring,
                                                      int steps, int consumer, int lane, int first_scale,
                                                      const WeightScales<C>& weights,
                                                      float (&sums)[C::kWaves][C::kSums]) {
  float blocks[WeightScales<C>::kBlocks];
  weights.load(0, blocks);
#pragma unroll
  for (int v = 0; v < kActive; ++v) {
#pragma unroll
    for (int i = 0; i < C::kSums; ++i) sums[v][i] = 0.0F;
  }
  for (int step = 0; step < steps; ++step) {
    mbarrier_wait(shared.full(ring.slot), ring.parity());
    const uint64_t x = wgmma_k_major(shared.x(ring.slot) + consumer * 8192);
    const uint64_t w = wgmma_k_major(shared.w(ring.slot));
    const float* row_scales = shared.scales(ring.slot) + first_scale;
    PartScales<C> scales[kActive];
#pragma unroll
    for (int v = 0; v < kActive; ++v) {
      combine_scales<C>(weights, blocks, row_scales[v * (C::kScaleBoxBytes / 4)],
                        row_scales[v * (C::kScaleBoxBytes / 4) + 8], scales[v]);
    }
    weights.load(min(step + 1, steps - 1), blocks);
#pragma unroll
    for (int v = 0; v < kActive; ++v) {
      float partial[C::kSums];
      named_barrier_sync(1 + consumer, 128 * C::kConsumers);  // this consumer's turn
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        wgmma_e4m3<C::kBlockN>(partial, wgmma_advance(x, v * 16384 + i * 32), wgmma_advance(w, i * 32),
                               i > 0);
        if (i == C::kTurnAfter - 1) wgmma_commit();
      }
      wgmma_commit();
      wgmma_wait<1>();
      named_barrier_arrive(2 - consumer, 128 * C::kConsumers);  // the other one's
      wgmma_wait<0>();
      wgmma_pin(partial);
      if (v == kActive - 1) release<C>(shared, ring.slot, lane);
      promote<C>(partial, scales[v], sums[v]);
    }
    ring.advance();
  }
}

// The same where two waves' partial sums fit: the products of a block are issued before the sums of the one
// before are taken over.
template <class C>
__device__ __forceinline__ void multiply_fp8_ahead(const Shared<C>& shared, RingPosition<C::kStages>& ring,
                                                   int steps, int consumer, int lane, int first_scale,
                                                   const WeightScales<C>& weights, float (&sums)[C::kSums]) {
  struct Block {
    float partial[C::kSums];
    PartScales<C> scales;
    uint32_t slot;
  };
  float blocks[WeightScales<C>::kBlocks];
  weights.load(0, blocks);
#pragma unroll
  for (int i = 0; i < C::kSums; ++i) sums[i] = 0.0F;
  const auto begin = [&](int step, Block& block) {
    mbarrier_wait(shared.full(ring.slot), ring.parity());
    const uint64_t x = wgmma_k_major(shared.x(ring.slot) + consumer * 8192);
    const uint64_t w = wgmma_k_major(shared.w(ring.slot));
    const float* row_scales = shared.scales(ring.slot) + first_scale;
    combine_scales<C>(weights, blocks, row_scales[0], row_scales[8], block.scales);
    weights.load(min(step + 1, steps - 1), blocks);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i)
      wgmma_e4m3<C::kBlockN>(block.partial, wgmma_advance(x, i * 32), wgmma_advance(w, i * 32), i > 0);
    wgmma_commit();
    block.slot = ring.slot;
    ring.advance();
  };
  const auto finish = [&](Block& block) {
    wgmma_pin(block.partial);
    release<C>(shared, block.slot, lane);
    promote<C>(block.partial, block.scales, sums);
  };
  Block even;
  Block odd;
  begin(0, even);
  int step = 0;
  for (; step + 2 < steps; step += 2) {
    begin(step + 1, odd);
    wgmma_wait<1>();
    finish(even);
    begin(step + 2, even);
    wgmma_wait<1>();
    finish(odd);
  }
  if (step + 1 < steps) {
    begin(step + 1, odd);
    wgmma_wait<1>();
    finish(even);
    wgmma_wait<0>();
    finish(odd);
  } else {
    wgmma_wait<0>();
    finish(even);
  }
}

// The 16 rows of one warp, all columns of the tile, to y: part by part (64 columns) through shared memory of
// the warp's own. Whole parts leave by the copy engine while the warp goes on; the last rows of an expert,
// behind which other rows follow, by stores of the warp. Lane 0 commits one group a part, empty or not, so
// that "all but the last kStagingParts − 1 groups" are the parts whose memory is free again.
template <class C>
__device__ __forceinline__ void store_rows(const CUtensorMap& y_map, const WgmmaGemmParams& p,
                                           uint8_t* staging, const float (&sums)[C::kSums], int wave, int row,
                                           int row_end, int n_begin, int lane) {
  constexpr int kParts = C::kBlockN / 64;
  lane = afresh(lane);
  const bool whole = row + 16 <= row_end || row_end == p.rows;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    uint8_t* buffer = staging + (wave * kParts + part) % C::kStagingParts * 2048;
    if (row < row_end) {
      if (lane == 0) bulk_store_wait_read<C::kStagingParts - 1>();
      __syncwarp();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* v = &sums[32 * part + 8 * j];
        store_matrix_x4(shared_address(buffer) + swizzle_128(lane % 16, 2 * j + lane / 16),
                        pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]),
                        pack_bf16(v[6], v[7]));
      }
      if (whole) fence_proxy_async_shared();
      __syncwarp();
      if (whole) {
        if (lane == 0) tma_store_2d(&y_map, buffer, n_begin + 64 * part, row);
      } else {
        const int column = n_begin + 64 * part + 8 * (lane % 8);
#pragma unroll 1
        for (int r = lane / 8; r < row_end - row; r += 4) {
          const uint4 values = *reinterpret_cast<const uint4*>(buffer + swizzle_128(r, lane % 8));
          if (column < p.n)
            *reinterpret_cast<uint4*>(p.y + static_cast<int64_t>(row + r) * p.y_stride + column) = values;
        }
      }
    }
    if (lane == 0) bulk_store_commit();
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
    tma_prefetch_map(&y_map);
    if constexpr (C::kFp8) tma_prefetch_map(&scale_map);
    for (int s = 0; s < C::kStages; ++s) {
      mbarrier_init(shared.full(s), 1);
      mbarrier_init(shared.empty(s), 4 * C::kConsumers * C::kCluster);
    }
    mbarrier_init_fence();
  }
  pdl_wait();
  make_tables<C>(p, row_starts, tile_starts);
  if constexpr (C::kCluster > 1) cluster_sync();  // the barriers of the whole cluster are ready
  TileSchedule<C> schedule;
  Tile tile;
  RingPosition<C::kStages> ring;

  if (warp_idx < 4) {
    set_max_registers_down<40>();
    if (warp_idx == 0 && elect_one()) {
      constexpr int kShare = C::kBlockM / C::kCluster;  // rows of x that this block loads for the cluster
      while (schedule.next(p, shared.row_starts(), tile)) {
        for (int step = 0; step < p.num_k_steps; ++step) {
          mbarrier_wait(shared.empty(ring.slot), ring.producer_parity());
          Mbarrier* full = shared.full(ring.slot);
          mbarrier_arrive_expect_tx(full, C::kArrivingBytes);
          const int k = step * C::kStepK;
          uint8_t* x = shared.x(ring.slot) + rank * kShare * 128;
          if constexpr (C::kCluster == 1) {
            tma_load_2d(x, &x_map, full, k, tile.row_begin);
          } else {
            tma_load_2d_multicast(x, &x_map, full, k, tile.row_begin + rank * kShare,
                                  static_cast<uint16_t>((1U << C::kCluster) - 1U));
          }
          tma_load_3d(shared.w(ring.slot), &w_map, full, k, tile.n_begin, tile.expert);
          if constexpr (C::kFp8) {
#pragma unroll
            for (int v = 0; v < C::kWaves; ++v) {
              tma_load_2d(shared.scales(ring.slot) + v * (C::kScaleBoxBytes / 4), &scale_map, full,
                          tile.row_begin / 4 * 4 + 128 * v, step);
            }
          }
          ring.advance();
        }
      }
      pdl_launch_dependents();
    }
    __syncwarp();
  } else {
    set_max_registers_up<232>();
    const int consumer = warp_idx / 4 - 1;
    const int warp = warp_idx % 4;
    uint8_t* staging = shared.staging(warp_idx - 4);
    if (C::kInTurns && consumer == 1) named_barrier_arrive(1, 128 * C::kConsumers);  // consumer 0 begins
    while (schedule.next(p, shared.row_starts(), tile)) {
      float sums[C::kWaves][C::kSums];
      const bool all_waves = C::kWaves == 1 || tile.row_end - tile.row_begin > 128;
      if constexpr (C::kFp8) {
        const WeightScales<C> weights(p, tile);
        const int first_scale = tile.row_begin % 4 + 64 * consumer + 16 * warp + lane / 4;
        if constexpr (!C::kInTurns) {
          multiply_fp8_ahead<C>(shared, ring, p.num_k_steps, consumer, lane, first_scale, weights, sums[0]);
        } else if (all_waves) {
          multiply_fp8_in_turns<C, C::kWaves>(shared, ring, p.num_k_steps, consumer, lane, first_scale,
                                              weights, sums);
        } else {
          multiply_fp8_in_turns<C, 1>(shared, ring, p.num_k_steps, consumer, lane, first_scale, weights,
                                      sums);
        }
      } else {
        if (all_waves)
          multiply_bf16<C, C::kWaves>(shared, ring, p.num_k_steps, consumer, lane, sums);
        else
          multiply_bf16<C, 1>(shared, ring, p.num_k_steps, consumer, lane, sums);
      }
#pragma unroll
      for (int v = 0; v < C::kWaves; ++v) {
        const int row = tile.row_begin + 64 * (2 * v + consumer) + 16 * warp;
        store_rows<C>(y_map, p, staging, sums[v], v, row, tile.row_end, tile.n_begin, lane);
      }
    }
  }
  // Here and not in the consumers' branch: code behind the loop there costs them the registers of setmaxnreg.
  if (C::kInTurns && warp_idx / 4 == 1) named_barrier_sync(1, 128 * C::kConsumers);  // the turn given last
  bulk_store_wait<0>();                           // lanes 0 of the consumers have stored
  if constexpr (C::kCluster > 1) cluster_sync();  // nobody leaves while another block may still write to it
}

}  // namespace wgmma_gemm

// The operands of a launch. x [rows, k] (rows x_stride apart), W [num_experts, n, k] (rows w_row_stride,
// experts expert_stride apart); k is the padded width for FP8. scales of x as in Fp8Rows.
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

template <class C>
void launch_wgmma_gemm(const WgmmaGemmOperands<typename C::Element>& o, WgmmaGemmParams p,
                       const Launch& launch) {
  constexpr int kStepK = C::kStepK;
  p.num_k_steps = static_cast<int>((o.k + kStepK - 1) / kStepK);
  const CUtensorMap x_map =
      make_tensor_map<2>(o.x, {o.k, p.rows}, {o.x_stride}, {kStepK, C::kBlockM / C::kCluster});
  const CUtensorMap w_map = make_tensor_map<3>(o.w, {o.k, p.n, p.num_experts},
                                               {o.w_row_stride, o.expert_stride}, {kStepK, C::kBlockN, 1});
  const CUtensorMap y_map = make_tensor_map<2>(p.y, {p.n, p.rows}, {p.y_stride}, {64, 16});
  CUtensorMap scale_map = x_map;
  if constexpr (C::kFp8) {
    scale_map = make_tensor_map<2>(o.x_scales, {p.rows, p.num_k_steps}, {o.x_scale_stride}, {C::kScaleBox, 1},
                                   CU_TENSOR_MAP_SWIZZLE_NONE);
  }
  const int blocks = launch.num_sms / C::kCluster * C::kCluster;
  launch_kernel<wgmma_gemm::wgmma_gemm_kernel<C>>(launch, dim3(static_cast<unsigned>(blocks)),
                                                  dim3(C::kThreads), C::shared_bytes(p.num_experts), x_map,
                                                  w_map, scale_map, y_map, p);
}

}  // namespace hadal::cuda
