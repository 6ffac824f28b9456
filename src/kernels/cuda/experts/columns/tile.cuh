// Computes one tile of the columns kernel: the producer loads it, the consumers multiply, and the writers
// store the results.
#pragma once

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/matrix.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/sanitize.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/elementwise/rows.cuh"
#include "kernels/cuda/experts/columns/schedule.cuh"

namespace hadal::cuda::columns {

template <class C>
struct Shared {
  uint8_t* base;

  __device__ __forceinline__ uint8_t* w(uint32_t stage) const { return base + stage * C::kWBytes; }
  __device__ __forceinline__ uint8_t* x(uint32_t stage) const {
    return base + C::kXOffset + stage * C::kXBytes;
  }
  // Returns the results [token][16 chunks of 8 rows of W], with chunk c of token t at place c ^ (t % 8).
  __device__ __forceinline__ uint8_t* staging() const { return base + C::kStagingOffset; }
  __device__ __forceinline__ Mbarrier* full(uint32_t stage) const {
    return reinterpret_cast<Mbarrier*>(base + C::kBarrierOffset) + stage;
  }
  __device__ __forceinline__ Mbarrier* empty(uint32_t stage) const { return full(stage) + C::kStages; }
  __device__ __forceinline__ Mbarrier* staged() const { return full(2 * C::kStages); }
  __device__ __forceinline__ Mbarrier* written() const { return staged() + 1; }
  __device__ __forceinline__ int* tables() const { return reinterpret_cast<int*>(base + C::kExpertOffset); }
};

__device__ __forceinline__ uint32_t staging_place(int token, int chunk) {
  return static_cast<uint32_t>(token * 256 + ((chunk ^ (token & 7)) << 4));
}

template <class C>
__device__ __forceinline__ void release(const Shared<C>& shared, uint32_t stage, int lane) {
  __syncwarp();
  mbarrier_arrive_warp<kCluster>(shared.empty(stage), lane);
}

// Identifies a consumer warp.
struct Consumer {
  int rank;      // the block's rank in the cluster
  int consumer;  // 0, 1
  int warp;      // the warp's index in the consumer
  int lane;
};

// Computes one tile of kN tokens: adds up all steps of k and writes the sums to `staging`. Afterwards `tile`
// is the next tile; returns false if there is none.
template <class C, int kN>
__device__ __forceinline__ bool consume_tile(const Params& p, const Shared<C>& shared, const Consumer& own,
                                             Schedule& schedule, Tile& tile, RingPosition<C::kStages>& ring,
                                             RingPosition<1>& staging_ring) {
  // The sums are set to zero, although the first product could overwrite them. Otherwise the compiler would
  // assume that the sums of every width are read before they are written, and would keep them live through
  // the whole loop over tiles.
  float sums[kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) sums[i] = 0.0F;
  uint32_t previous = 0;
  for (int step = 0; step < p.num_k_steps; ++step) {
    mbarrier_wait(shared.full(ring.slot), ring.parity());
    const uint64_t w = wgmma_k_major(shared.w(ring.slot) + own.consumer * 8192);
    const uint64_t x = wgmma_k_major(shared.x(ring.slot));
    wgmma_pin(sums);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wgmma_16_bit<typename C::T, kN>(sums, wgmma_advance(w, i * 32), wgmma_advance(x, i * 32), true);
    }
    wgmma_commit();
    wgmma_pin(sums);
    wgmma_wait<1>();  // the products of the previous step are complete
    if (step > 0) release(shared, previous, own.lane);
    previous = ring.slot;
    ring.advance();
  }
  const bool more = schedule.next(p, shared.tables(), own.rank, tile);
  mbarrier_wait(shared.written(), staging_ring.producer_parity());
  wgmma_wait<0>();
  wgmma_pin(sums);
  random_delay_of_warp(delayed_consumer(own.consumer));
  release(shared, previous, own.lane);
  // Each store writes four 8 × 8 matrices: tokens 0 … 7 with the warp's first 8 rows of W and with its last 8
  // rows, then the same for tokens 8 … 15.
  using T = typename C::T;
  const int lane = afresh(own.lane);
  const int token = 8 * (lane / 16) + lane % 8;
  const int chunk = 2 * (4 * own.consumer + own.warp) + lane / 8 % 2;
  const uint32_t address = shared_address(shared.staging()) + staging_place(token, chunk);
#pragma unroll
  for (int i = 0; i < kN / 16; ++i) {
    const float* v = &sums[8 * i];
    store_matrix_x4_transposed(address + 4096 * i, pack_two<T>(v[0], v[1]), pack_two<T>(v[2], v[3]),
                               pack_two<T>(v[4], v[5]), pack_two<T>(v[6], v[7]));
  }
  __syncwarp();
  random_delay_of_warp(delayed_consumer(own.consumer));
  mbarrier_arrive_warp(shared.staged(), lane);
  staging_ring.advance();
  return more;
}

// Calls consume_tile with kN equal to tile.tokens, which is found by bisection in kLow … kHigh.
template <class C, int kLow, int kHigh>
__device__ __forceinline__ bool consume_any(const Params& p, const Shared<C>& shared, const Consumer& own,
                                            Schedule& schedule, Tile& tile, RingPosition<C::kStages>& ring,
                                            RingPosition<1>& staging_ring) {
  if constexpr (kLow == kHigh) {
    return consume_tile<C, kLow>(p, shared, own, schedule, tile, ring, staging_ring);
  } else {
    constexpr int kMiddle = kLow + (kHigh - kLow) / (2 * kTokenStep) * kTokenStep;
    if (tile.tokens <= kMiddle)
      return consume_any<C, kLow, kMiddle>(p, shared, own, schedule, tile, ring, staging_ring);
    return consume_any<C, kMiddle + kTokenStep, kHigh>(p, shared, own, schedule, tile, ring, staging_ring);
  }
}

// Returns silu(gate) · up of two neighbouring features, bit-identical to silu_mul.
template <typename T>
__device__ __forceinline__ uint32_t silu_pair(uint32_t gate, uint32_t up) {
  const float2 g = unpack_two<T>(gate);
  const float2 u = unpack_two<T>(up);
  return pack_two<T>(silu_times(g.x, u.x), silu_times(g.y, u.y));
}

// Stores one writer warp's part of a tile (`writer` is 0, 1 or 2) in whole lines of y, which have 128 bytes
// per token if activated and 256 bytes otherwise.
template <class C>
__device__ __forceinline__ void write_tile(const Params& p, const Shared<C>& shared, const Tile& tile,
                                           int writer, int lane) {
  const int tokens = min(tile.tokens, tile.row_end - tile.row_begin);
  const uint8_t* staging = shared.staging();
  constexpr int kLanes = C::kActivated ? 8 : 16;  // lanes of a token
  constexpr int kAtOnce = 32 / kLanes;            // tokens at once
  const int part = lane % kLanes;
  const int feature = 8 * (kLanes * tile.block + part);
  if (feature >= p.n) return;
  int token = kAtOnce * writer + lane / kLanes;
  using T = typename C::T;
  T* y = static_cast<T*>(p.y) + static_cast<int64_t>(tile.row_begin + token) * p.n + feature;
#pragma unroll 2
  for (; token < tokens; token += kAtOnce * kWriters) {
    uint4 out;
    if constexpr (C::kActivated) {
      const uint4 gate = *reinterpret_cast<const uint4*>(staging + staging_place(token, 2 * part));
      const uint4 up = *reinterpret_cast<const uint4*>(staging + staging_place(token, 2 * part + 1));
      out = {silu_pair<T>(gate.x, up.x), silu_pair<T>(gate.y, up.y), silu_pair<T>(gate.z, up.z),
             silu_pair<T>(gate.w, up.w)};
    } else {
      out = *reinterpret_cast<const uint4*>(staging + staging_place(token, part));
    }
    *reinterpret_cast<uint4*>(y) = out;
    y += static_cast<int64_t>(kAtOnce * kWriters) * p.n;
  }
}

// Loads one tile. It is called by the producer's thread.
template <class C>
__device__ __forceinline__ void produce_tile(const Params& p, const Shared<C>& shared, const Maps<C>& maps,
                                             const Tile& tile, int expert_begin, int rank,
                                             RingPosition<C::kStages>& ring) {
  const int half = tile.tokens / 2;
  const bool direct = tile.expert >= p.direct_from;
  const CUtensorMap* x_map = (direct ? maps.tokens : maps.x) + (half / 8 - 1);
  const int row = tile.row_begin - (direct ? expert_begin : 0) + rank * half;
  const uint32_t bytes = static_cast<uint32_t>(C::kWBytes + tile.tokens * 128);
  for (int step = 0; step < p.num_k_steps; ++step) {
    random_delay(DelayedRole::kProducer);
    mbarrier_wait(shared.empty(ring.slot), ring.producer_parity());
    Mbarrier* full = shared.full(ring.slot);
    mbarrier_arrive_expect_tx(full, bytes);
    const int k = step * kStepK;
    if constexpr (C::kActivated) {
      tma_load_5d(shared.w(ring.slot), &maps.w, full, k, 0, 0, 8 * tile.block, tile.expert);
    } else {
      tma_load_3d(shared.w(ring.slot), &maps.w, full, k, kBlockW * tile.block, tile.expert);
    }
    tma_load_2d_multicast(shared.x(ring.slot) + rank * half * 128, x_map, full, k, row, 3);
    ring.advance();
  }
}

}  // namespace hadal::cuda::columns
