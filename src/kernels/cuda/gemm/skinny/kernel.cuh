// Computes y = x · Wᵀ for few rows of x by streaming the weights: W is read once, at the bandwidth of the
// memory. linear uses this kernel with one matrix; grouped_linear uses it with one matrix per expert and rows
// of x that token_of gathers.
//
// The operands are swapped: rows of W are on the 64-row side of wgmma, and rows of x ("tokens") are on its
// side of 8 … 64 columns, so one token costs 8 columns instead of 64 rows. With FP8 or INT8 and block scales,
// the sum over every 128 of k is promoted to float32 and multiplied by both scales, either at once or while
// the tensor cores work on the next 128. FP8 with channel scales is promoted the same way, without scales;
// INT8 with channel scales has exact int32 sums over all of k and all splits. The sums of both are multiplied
// by the scales of row and channel when they are stored.
//
// Grid: x is the split of k (a cluster of 1 to 8 blocks), y the tile of kGroups · 64 rows of W, and z the
// z-th expert with rows, counted from the last expert (grouped only; blocks with z beyond the experts with
// rows end at once).
// Block: it has kGroups consumer warpgroups, each with its own 64 rows of W, all with the same tokens, and
// one producer warp.
// Ring: a slot in shared memory holds 128 bytes of k (64 values of 16 bits, 128 e4m3) of the W tile and of
// the tokens, with the 128-byte swizzle. W and x are loaded by TMA. If rows of x are gathered, the producer
// loads them by cp.async instead (zeros for rows and k that do not exist). full[slot] counts the bytes (and
// the producer's lanes). empty[slot] counts one arrival of each consumer warp, made when the next slot's
// products have been issued, or at once if a slot holds many tokens (releases_at_once). The loads of the
// first round of W are issued before pdl_wait, because no kernel writes weights (for experts only if the
// choice of experts is settled).
// Epilogue: sums are exchanged through the shared memory of the ring. Each split adds up a part of the
// outputs over all splits in order (distributed shared memory), so there are no atomics and every run gives
// the same bits. A block has up to 200 KB of shared memory. gemm/skinny/schedule.h decides how many blocks
// run on a multiprocessor; their rings together have up to 200 KB in flight.
#pragma once

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/cp_async.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/length_gate.cuh"
#include "kernels/cuda/common/matrix.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/common/wgmma_s8.cuh"
#include "kernels/cuda/gemm/skinny/schedule.h"
#include "kernels/params/linear.h"

namespace hadal::cuda::skinny {

inline constexpr int kSlotBytes = 128;  // bytes of k
inline constexpr int kTileRows = 64;    // rows of W, per warpgroup
inline constexpr int kConsumerBarrier = 1;

struct Args {
  const std::byte* x = nullptr;  // rows of bf16, f16, e4m3 or int8
  int64_t x_row_bytes = 0;
  const float* x_scales = nullptr;  // blocks: [blocks, x_scale_stride]; channels: [rows]
  int64_t x_scale_stride = 0;
  // scales of expert 0; blocks: [ceil(n / 128), w_scale_stride]; channels: [n].
  const float* w_scales = nullptr;
  int64_t w_scale_stride = 0;
  int64_t expert_scale_stride = 0;
  const int32_t* token_of = nullptr;
  const int32_t* expert_offsets = nullptr;  // null: one matrix
  int num_experts = 0;
  int offsets_settled = 0;  // expert_offsets may be read before pdl_wait
  int late = 0;  // one matrix: the next kernel starts when all loads of W, not the first round, are issued
  void* y = nullptr;
  int64_t y_stride = 0;  // elements
  int y_is_f32 = 0;
  int y_vector = 0;  // four outputs may be stored at once
  int m = 0;         // rows of x (one matrix)
  int n = 0;
  int k_bytes = 0;              // bytes of a row of x that exist, a multiple of 16
  int num_blocks = 0;           // ceil(k_bytes / 128)
  int ring_bytes = 0;           // shared memory for slots
  const float* bias = nullptr;  // channels: [n], or null
  LengthGate gate;              // one matrix
};

constexpr int slot_bytes(int tokens, int groups) {
  return (groups * kTileRows + tokens) * kSlotBytes;
}
constexpr int staging_bytes(int tokens, int groups) {
  return tokens * (groups * kTileRows + 4) * 4;
}

template <WeightType kType>
struct Type {
  static constexpr bool kBytes = weight_element_bytes(kType) == 1;  // size of an element
  static constexpr bool kInt8 = is_int8(kType);
  static constexpr bool kBlocks = is_block_scaled(kType);
  static constexpr bool kChannels = is_channel_scaled(kType);
  // True if sums leave the tensor cores after each 128 of k.
  static constexpr bool kPromotes = kBlocks || kType == WeightType::kFp8Channel;
  using Partial = std::conditional_t<kInt8, int32_t, float>;
  using Sum = std::conditional_t<kPromotes, float, Partial>;

  // Returns the number of floats of scales in shared memory. Block scales are stored as [blocks, tokens], the
  // products of both operands' scales. Channel scales are stored as the scales of the tokens, then those of
  // the rows of W.
  static constexpr int scale_count(int tokens, int groups, int blocks_of_split) {
    return kBlocks ? blocks_of_split * tokens : kChannels ? tokens + groups * kTileRows : 0;
  }
};

// Holds the offsets into shared memory from a 1024-byte boundary; the ring is first.
struct SharedLayout {
  int scales, barriers, bytes;

  __host__ __device__ SharedLayout(int scale_count, int ring_bytes) {
    scales = ring_bytes;
    barriers = scales + scale_count * 4;
    bytes = barriers + (2 * kMaxStages + 1) * 8;
  }
};

// Describes the work of a block: a tile of rows of one matrix, a range of 128-byte blocks of k, and the rows
// of x.
struct Work {
  int expert = 0;
  int row0 = 0;           // first row in the matrix
  int block0 = 0;         // first block of k
  int num_blocks = 0;     // blocks of k
  int64_t first_row = 0;  // sorted row (of y) of the first token
  int num_rows = 0;
};

// Walks the ring; the producer and every consumer make the same walk.
struct Ring {
  std::byte* slots;
  Mbarrier* full;
  Mbarrier* empty;
  Mbarrier* tile_free;  // grouped: the consumers have read the memory (a tile of tokens is done)
  int stages;
  int slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++slot == stages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// Loads W of a block of k into a slot. One thread calls this. x_bytes is the number of bytes of x that TMA
// completes on the same barrier.
template <WeightType kType, int kTokens, int kGroups>
__device__ __forceinline__ void load_weights(const CUtensorMap* map, const Work& work, const Ring& ring,
                                             int slot, int block, int x_bytes) {
  constexpr int kWBytes = kGroups * kTileRows * kSlotBytes;
  mbarrier_arrive_expect_tx(&ring.full[slot], kWBytes + x_bytes);
  tma_load_3d(ring.slots + slot * slot_bytes(kTokens, kGroups), map, &ring.full[slot],
              (work.block0 + block) * (Type<kType>::kBytes ? kSlotBytes : kSlotBytes / 2), work.row0,
              work.expert, L2Policy::kEvictFirst);
}

// Does the producer warp's part for one matrix. One lane calls this.
template <WeightType kType, int kTokens, int kGroups>
__device__ __forceinline__ void produce(const CUtensorMap* w_map, const CUtensorMap* x_map, const Work& work,
                                        Ring& ring, bool late) {
  constexpr int kWBytes = kGroups * kTileRows * kSlotBytes;
#pragma unroll 1
  for (int block = 0; block < work.num_blocks; ++block) {
    if (block >= ring.stages) {
      mbarrier_wait(&ring.empty[ring.slot], ring.parity ^ 1);
      load_weights<kType, kTokens, kGroups>(w_map, work, ring, ring.slot, block, kTokens * kSlotBytes);
    }
    tma_load_2d(ring.slots + ring.slot * slot_bytes(kTokens, kGroups) + kWBytes, x_map, &ring.full[ring.slot],
                (work.block0 + block) * (Type<kType>::kBytes ? kSlotBytes : kSlotBytes / 2), 0,
                L2Policy::kEvictLast);
    ring.advance();
  }
  if (late) pdl_launch_dependents();
}

// Does the same for gathered rows, which are the tokens of the work from `begin` on. All lanes call this.
template <WeightType kType, int kTokens, int kGroups>
__device__ __forceinline__ void produce_gathered(const CUtensorMap* w_map, const Args& args, const Work& work,
                                                 int begin, Ring& ring) {
  constexpr int kWBytes = kGroups * kTileRows * kSlotBytes;
  constexpr int kRows = kTokens / 4;  // a lane copies chunk lane % 8 of rows lane / 8 + 4 · i
  const int lane = threadIdx.x % 32;
  const int chunk = lane % 8;
  const std::byte* x = args.x + chunk * 16;
  int32_t rows[kRows];
  uint32_t exists = 0;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int token = begin + lane / 8 + 4 * i;
    const bool real = token < work.num_rows;
    const int64_t row = work.first_row + (real ? token : begin);
    rows[i] = args.token_of != nullptr ? args.token_of[row] : static_cast<int32_t>(row);
    exists |= static_cast<uint32_t>(real) << i;
  }
  // Rows lane / 8 + 4 · i have two swizzle patterns, one for even and one for odd i.
  const uint32_t even = shared_address(ring.slots) + kWBytes + swizzle_128(lane / 8, chunk);
  const uint32_t odd = shared_address(ring.slots) + kWBytes + swizzle_128(lane / 8 + 4, chunk);
#pragma unroll 1
  for (int block = 0; block < work.num_blocks; ++block) {
    if (begin > 0 || block >= ring.stages) {
      mbarrier_wait(&ring.empty[ring.slot], ring.parity ^ 1);
      if (lane == 0) load_weights<kType, kTokens, kGroups>(w_map, work, ring, ring.slot, block, 0);
      __syncwarp();
    }
    const int k = (work.block0 + block) * kSlotBytes;
    const bool in_row = k + chunk * 16 < args.k_bytes;
    const uint32_t slot = ring.slot * slot_bytes(kTokens, kGroups);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const bool real = in_row && (exists >> i & 1U) != 0;
      copy_async_16((i % 2 == 0 ? even : odd) + slot + i / 2 * (8 * kSlotBytes),
                    x + rows[i] * args.x_row_bytes + (real ? k : 0), real);
    }
    copy_async_arrive(&ring.full[ring.slot]);
    ring.advance();
  }
}

// Returns true if a slot is released as soon as its own products are done. Otherwise a slot is released after
// the next slot's products have been issued, which happens only when the next slot's weights have arrived.
// Until then the slot is idle, which is costly with many tokens, because they leave room for few slots. With
// fewer tokens there are enough slots, and products run while sums are promoted.
template <WeightType kType, int kTokens, bool kGrouped>
constexpr bool releases_at_once() {
  return Type<kType>::kBytes && kTokens == 64 && !kGrouped;
}

// Does the consumers' part: computes acc[64 rows, kTokens] of this warpgroup.
template <WeightType kType, int kTokens, int kGroups, bool kGathered>
__device__ __forceinline__ void consume(const Work& work, Ring& ring, const float* scales,
                                        typename Type<kType>::Sum (&acc)[kTokens / 2]) {
  using Partial = typename Type<kType>::Partial;
  constexpr int kStep = 32;  // bytes of k per product
  constexpr int kSteps = kSlotBytes / kStep;
  constexpr int kWBytes = kGroups * kTileRows * kSlotBytes;
  const int lane = threadIdx.x % 32;
  const uint64_t w_tiles = wgmma_k_major(ring.slots + threadIdx.x / 128 * (kTileRows * kSlotBytes));
  const uint64_t x_tiles = wgmma_k_major(ring.slots + kWBytes);
  constexpr bool kAtOnce = releases_at_once<kType, kTokens, kGathered>();
  [[maybe_unused]] int last_slot = 0;

  const auto issue = [&](Partial(&sums)[kTokens / 2], bool add) {
    mbarrier_wait(&ring.full[ring.slot], ring.parity);
    if constexpr (kGathered) fence_proxy_async_shared();  // cp.async wrote x, the tensor cores read it
    const uint64_t w_tile = wgmma_advance(w_tiles, ring.slot * slot_bytes(kTokens, kGroups));
    const uint64_t x_tile = wgmma_advance(x_tiles, ring.slot * slot_bytes(kTokens, kGroups));
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint64_t a = wgmma_advance(w_tile, step * kStep);
      const uint64_t b = wgmma_advance(x_tile, step * kStep);
      if constexpr (Type<kType>::kInt8) {
        wgmma_s8<kTokens>(sums, a, b, add || step > 0);
      } else if constexpr (Type<kType>::kBytes) {
        wgmma_e4m3<kTokens>(sums, a, b, step > 0);
      } else {
        wgmma_16_bit<Row16<kType>, kTokens>(sums, a, b, add || step > 0);
      }
    }
    wgmma_commit();
  };
  // Releases a slot whose products are complete.
  const auto release = [&](int slot) {
    if (lane == 0) mbarrier_arrive(&ring.empty[slot]);
  };

  if constexpr (!Type<kType>::kPromotes) {
    wgmma_pin(acc);
#pragma unroll 1
    for (int block = 0; block < work.num_blocks; ++block) {
      issue(acc, block > 0);
      if constexpr (kAtOnce) {
        wgmma_wait<0>();
        wgmma_pin(acc);
        release(ring.slot);
      } else {
        wgmma_wait<1>();
        if (block > 0) release(last_slot);
        last_slot = ring.slot;
      }
      ring.advance();
    }
    if constexpr (!kAtOnce) {
      wgmma_wait<0>();
      wgmma_pin(acc);
      release(last_slot);
    }
  } else {
    Partial even[kTokens / 2];
    const float* next_scales = scales + 2 * (lane % 4);
    const auto promote = [&](Partial(&sums)[kTokens / 2]) {
      wgmma_pin(sums);
      release(last_slot);
      if constexpr (Type<kType>::kBlocks) {
#pragma unroll
        for (int j = 0; j < kTokens / 8; ++j) {
          const float2 scale = *reinterpret_cast<const float2*>(next_scales + 8 * j);
          acc[4 * j] = fmaf(static_cast<float>(sums[4 * j]), scale.x, acc[4 * j]);
          acc[4 * j + 1] = fmaf(static_cast<float>(sums[4 * j + 1]), scale.y, acc[4 * j + 1]);
          acc[4 * j + 2] = fmaf(static_cast<float>(sums[4 * j + 2]), scale.x, acc[4 * j + 2]);
          acc[4 * j + 3] = fmaf(static_cast<float>(sums[4 * j + 3]), scale.y, acc[4 * j + 3]);
        }
        next_scales += kTokens;
      } else {
#pragma unroll
        for (int j = 0; j < kTokens / 2; ++j) acc[j] += sums[j];
        wgmma_pin(acc);  // added here, not after the next products
      }
    };
    const auto step = [&](Partial(&now)[kTokens / 2], Partial(&before)[kTokens / 2]) {
      issue(now, false);
      wgmma_wait<1>();
      promote(before);
      last_slot = ring.slot;
      ring.advance();
    };
#pragma unroll
    for (float& value : acc) value = 0.0F;
    if constexpr (kAtOnce) {
#pragma unroll 1
      for (int block = 0; block < work.num_blocks; ++block) {
        issue(even, false);
        wgmma_wait<0>();
        last_slot = ring.slot;
        promote(even);
        ring.advance();
      }
    } else {
      Partial odd[kTokens / 2];
      issue(even, false);
      last_slot = ring.slot;
      ring.advance();
      int block = 1;
#pragma unroll 1
      for (; block + 1 < work.num_blocks; block += 2) {
        step(odd, even);
        step(even, odd);
      }
      if (block < work.num_blocks) {
        step(odd, even);
        wgmma_wait<0>();
        promote(odd);
      } else {
        wgmma_wait<0>();
        promote(even);
      }
    }
  }
}

// Adds two sums; int32 sums are stored as the bits of a float.
template <WeightType kType>
__device__ __forceinline__ float add_sums(float a, float b) {
  if constexpr (std::is_same_v<typename Type<kType>::Sum, int32_t>)
    return __int_as_float(__float_as_int(a) + __float_as_int(b));
  else
    return a + b;
}
template <WeightType kType>
__device__ __forceinline__ float widen_sum(float sum) {
  if constexpr (std::is_same_v<typename Type<kType>::Sum, int32_t>)
    return static_cast<float>(__float_as_int(sum));
  else
    return sum;
}

// Adds up the tiles of the cluster's blocks and stores this block's share. `staging` is this block's tile
// [kTokens][kRows + 4]; `scales` are the channel scales.
template <WeightType kType, int kTokens, int kGroups>
__device__ __forceinline__ void store_tile(const Args& args, const Work& work, int begin,
                                           const float* staging, const float* scales, int rank, int splits) {
  using T = Row16<kType>;
  constexpr int kRows = kGroups * kTileRows;
  constexpr int kPitch = kRows + 4;
  constexpr int kQuads = kRows / 4;
  const int tokens = min(kTokens, work.num_rows - begin);
#pragma unroll 1
  for (int i = rank * (kGroups * 128) + threadIdx.x; i < tokens * kQuads; i += splits * (kGroups * 128)) {
    const int token = i / kQuads;
    const int row = i % kQuads * 4;
    const int n = work.row0 + row;
    if (n >= args.n) continue;
    const float* source = staging + token * kPitch + row;
    float4 sum;
    if (splits == 1) {
      sum = *reinterpret_cast<const float4*>(source);
    } else {
      // Four loads are in flight at once, because one load from another block's memory takes about as long as
      // all of this loop's arithmetic.
      sum = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll 1
      for (int first = 0; first < splits; first += 4) {
        float4 parts[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          parts[i] = {0.0F, 0.0F, 0.0F, 0.0F};
          if (first + i < splits) parts[i] = load_remote(shared_address(source), first + i);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sum.x = add_sums<kType>(sum.x, parts[i].x);
          sum.y = add_sums<kType>(sum.y, parts[i].y);
          sum.z = add_sums<kType>(sum.z, parts[i].z);
          sum.w = add_sums<kType>(sum.w, parts[i].w);
        }
      }
    }
    if constexpr (Type<kType>::kChannels) {
      const float x_scale = scales[token];
      const float4 w_scale = *reinterpret_cast<const float4*>(scales + kTokens + row);
      float4 bias{};
      if (args.bias != nullptr) {
        const auto at = [&](int j) { return args.bias[min(n + j, args.n - 1)]; };
        bias = {at(0), at(1), at(2), at(3)};
      }
      sum.x = fmaf(widen_sum<kType>(sum.x) * x_scale, w_scale.x, bias.x);
      sum.y = fmaf(widen_sum<kType>(sum.y) * x_scale, w_scale.y, bias.y);
      sum.z = fmaf(widen_sum<kType>(sum.z) * x_scale, w_scale.z, bias.z);
      sum.w = fmaf(widen_sum<kType>(sum.w) * x_scale, w_scale.w, bias.w);
    }
    const int64_t at = (work.first_row + begin + token) * args.y_stride + n;
    if (args.y_vector != 0 && n + 4 <= args.n) {
      if (args.y_is_f32 != 0) {
        *reinterpret_cast<float4*>(static_cast<float*>(args.y) + at) = sum;
      } else {
        *reinterpret_cast<uint2*>(static_cast<T*>(args.y) + at) = {pack_two<T>(sum.x, sum.y),
                                                                   pack_two<T>(sum.z, sum.w)};
      }
      continue;
    }
    const float values[4] = {sum.x, sum.y, sum.z, sum.w};
    for (int j = 0; j < 4 && n + j < args.n; ++j) {
      if (args.y_is_f32 != 0) {
        static_cast<float*>(args.y)[at + j] = values[j];
      } else {
        static_cast<T*>(args.y)[at + j] = round_to<T>(values[j]);
      }
    }
  }
}

struct ExpertRows {
  int expert = -1;
  int first_row = 0;
  int num_rows = 0;
};

// Finds the a-th expert with rows (from 0), counted from the last expert; `expert` is −1 if there are fewer.
// All lanes of a warp call this. It counts from the end because the shared experts are there: they have the
// most rows, so their blocks should not be the last to start. The offsets are read in whole lines, all at
// once, because the rest of the block waits for them. If `settled`, the reads bypass the L1, which may hold
// the offsets of an earlier layer.
__device__ __forceinline__ ExpertRows find_expert(const int32_t* offsets, int num_experts, int a,
                                                  bool settled) {
  constexpr int kMost = kMaxExperts / 32;
  const int lane = threadIdx.x % 32;
  const int runs = (num_experts + 31) / 32;
  int starts[kMost + 1];
#pragma unroll
  for (int i = 0; i <= kMost; ++i) {
    const int32_t* p = offsets + min(32 * i + lane, num_experts);
    starts[i] = 0;
    if (i <= runs) starts[i] = settled ? __ldcg(p) : *p;
  }
  ExpertRows found;
#pragma unroll
  for (int i = kMost - 1; i >= 0; --i) {
    if (i >= runs) continue;
    const int after = __shfl_sync(0xffffffffU, starts[i + 1], 0);
    const int right = __shfl_down_sync(0xffffffffU, starts[i], 1);
    const int end = lane == 31 ? after : right;
    uint32_t with_rows = __ballot_sync(0xffffffffU, end > starts[i]);
    const int count = __popc(with_rows);
    if (found.expert < 0 && a < count) {
      for (int skip = a; skip > 0; --skip) with_rows &= ~(0x80000000U >> __clz(with_rows));
      const int source = 31 - __clz(with_rows);
      found.expert = 32 * i + source;
      found.first_row = __shfl_sync(0xffffffffU, starts[i], source);
      found.num_rows = __shfl_sync(0xffffffffU, end, source) - found.first_row;
    }
    a -= count;
  }
  return found;
}

// Computes all tiles of tokens of a block: one tile, or several tiles for experts with more than kTokens
// rows. The loads of W into the first min(stages, num_blocks) slots have been issued already.
template <WeightType kType, int kTokens, int kGroups, bool kGrouped>
__device__ __forceinline__ void run(const CUtensorMap* w_map, const CUtensorMap* x_map, const Args& args,
                                    const Work& work, Ring ring, std::byte* shared, float* scales, int rank,
                                    int splits) {
  constexpr int kConsumers = kGroups * 128;
  // No block may end, or write its staging tile again, while other blocks read that tile. The reads must be
  // ordered with writes only if another tile follows.
  const auto wait_after_reads = [&](int begin) {
    if (splits == 1) return;
    if (begin + kTokens < work.num_rows) {
      cluster_sync();
    } else {
      cluster_reads_done();
    }
  };
#pragma unroll 1
  for (int begin = 0; begin < work.num_rows; begin += kTokens) {
    if (threadIdx.x >= kConsumers) {
      if constexpr (kGrouped) {
        if (begin > 0) mbarrier_wait(ring.tile_free, (begin / kTokens - 1) & 1);
        produce_gathered<kType, kTokens, kGroups>(w_map, args, work, begin, ring);
      } else {
        if (threadIdx.x == kConsumers) {
          produce<kType, kTokens, kGroups>(w_map, x_map, work, ring, args.late != 0);
        }
      }
      __syncwarp();
      if (splits > 1) cluster_sync();
      wait_after_reads(begin);
      continue;
    }
    if constexpr (Type<kType>::kChannels) {
      // These scales are read when the tile is stored, two barriers later. Before they are overwritten, the
      // previous tile must have been stored.
      if (begin > 0) named_barrier_sync(kConsumerBarrier, kConsumers);
      const float* w_scales = args.w_scales + work.expert * args.expert_scale_stride;
#pragma unroll 1
      for (int i = threadIdx.x; i < kTokens + kGroups * kTileRows; i += kConsumers) {
        if (i < kTokens) {
          const int64_t row = work.first_row + min(begin + i, work.num_rows - 1);
          scales[i] = args.x_scales[kGrouped && args.token_of != nullptr ? args.token_of[row] : row];
        } else {
          scales[i] = w_scales[min(work.row0 + i - kTokens, args.n - 1)];
        }
      }
    }
    if constexpr (Type<kType>::kBlocks) {
      // A thread has one token and every kStep-th block of k; a batch of loads is in flight at once, because
      // each load takes as long as several products.
      constexpr int kStep = kConsumers / kTokens;
      constexpr int kAtOnce = 8;
      const float* w_scales = args.w_scales + work.expert * args.expert_scale_stride +
                              work.row0 / 128 * args.w_scale_stride + work.block0;
      const int token = begin + threadIdx.x % kTokens;
      const int64_t row = work.first_row + (token < work.num_rows ? token : begin);
      const int64_t source = kGrouped && args.token_of != nullptr ? args.token_of[row] : row;
      const float* x_scales = args.x_scales + work.block0 * args.x_scale_stride + source;
#pragma unroll 1
      for (int first = threadIdx.x / kTokens; first < work.num_blocks; first += kAtOnce * kStep) {
        float products[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int block = min(first + i * kStep, work.num_blocks - 1);
          products[i] = x_scales[block * args.x_scale_stride] * w_scales[block];
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int block = first + i * kStep;
          if (block < work.num_blocks) scales[block * kTokens + threadIdx.x % kTokens] = products[i];
        }
      }
      named_barrier_sync(kConsumerBarrier, kConsumers);
    }
    typename Type<kType>::Sum acc[kTokens / 2];
    consume<kType, kTokens, kGroups, kGrouped>(work, ring, scales, acc);

    // All products are complete and all copies have been written, so the ring becomes the staging tile.
    named_barrier_sync(kConsumerBarrier, kConsumers);
    constexpr int kPitch = kGroups * kTileRows + 4;
    float* staging = reinterpret_cast<float*>(shared);
    const int lane = threadIdx.x % 32;
    const int row = threadIdx.x / 32 * 16 + lane / 4;  // warps 4·g … 4·g + 3 own rows 64·g …
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      auto* column =
          reinterpret_cast<typename Type<kType>::Sum*>(staging) + (8 * j + 2 * (lane % 4)) * kPitch + row;
      column[0] = acc[4 * j];
      column[kPitch] = acc[4 * j + 1];
      column[8] = acc[4 * j + 2];
      column[kPitch + 8] = acc[4 * j + 3];
    }
    if (splits > 1) {
      cluster_sync();
    } else {
      named_barrier_sync(kConsumerBarrier, kConsumers);
    }
    store_tile<kType, kTokens, kGroups>(args, work, begin, staging, scales, rank, splits);
    __syncwarp();
    wait_after_reads(begin);
    if (kGrouped && begin + kTokens < work.num_rows) {
      fence_proxy_async_shared();  // orders ordinary accesses to the tile before the copy engine's
      mbarrier_arrive(ring.tile_free);
    }
  }
}

// Returns the blocks per multiprocessor: with three blocks of one warpgroup a thread may have 128 registers,
// with two blocks of two warpgroups 112.
template <WeightType kType, int kTokens, int kGroups, bool kGrouped>
constexpr int least_blocks() {
  if (kGroups == 1) return 3;
  return releases_at_once<kType, kTokens, kGrouped>() ? 2 : 1;
}

template <WeightType kType, int kTokens, int kGroups, bool kGrouped>
__global__ void __launch_bounds__(kGroups * 128 + 32, (least_blocks<kType, kTokens, kGroups, kGrouped>()))
    skinny_kernel(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
                  const Args args) {
  extern __shared__ std::byte shared_raw[];
  std::byte* shared = shared_raw + (1024 - shared_address(shared_raw) % 1024) % 1024;
  if constexpr (!kGrouped) {
    if (is_closed(args.gate)) return;
  }
  const int splits = static_cast<int>(gridDim.x);
  const int rank = static_cast<int>(blockIdx.x);
  Work work;
  work.block0 = rank * args.num_blocks / splits;
  work.num_blocks = (rank + 1) * args.num_blocks / splits - work.block0;
  work.row0 = static_cast<int>(blockIdx.y) * (kGroups * kTileRows);
  work.num_rows = args.m;
  const SharedLayout layout(
      Type<kType>::scale_count(kTokens, kGroups, (args.num_blocks + splits - 1) / splits), args.ring_bytes);
  if constexpr (kGrouped) {
    if (args.offsets_settled == 0) pdl_wait();
    __shared__ ExpertRows found_rows;
    if (threadIdx.x < 32) {
      found_rows = find_expert(args.expert_offsets, args.num_experts, static_cast<int>(blockIdx.z),
                               args.offsets_settled != 0);
    }
    __syncthreads();
    const ExpertRows found = found_rows;
    if (found.expert < 0) return;
    work.expert = found.expert;
    work.first_row = found.first_row;
    work.num_rows = found.num_rows;
  }
  float* scales = reinterpret_cast<float*>(shared + layout.scales);
  Ring ring{shared, reinterpret_cast<Mbarrier*>(shared + layout.barriers),
            reinterpret_cast<Mbarrier*>(shared + layout.barriers) + kMaxStages,
            reinterpret_cast<Mbarrier*>(shared + layout.barriers) + 2 * kMaxStages, 0};

  const auto start = [&]<int kWidth>() {
    ring.stages = min(kMaxStages, args.ring_bytes / slot_bytes(kWidth, kGroups));
    if (threadIdx.x == kGroups * 128) {
      tma_prefetch_map(&w_map);
#pragma unroll 1
      for (int slot = 0; slot < ring.stages; ++slot) {
        mbarrier_init(&ring.full[slot], kGrouped ? 33 : 1);
        mbarrier_init(&ring.empty[slot], kGroups * 4);
      }
      if (kGrouped) mbarrier_init(ring.tile_free, kGroups * 128);
      mbarrier_init_fence();
      fence_proxy_async_shared();
#pragma unroll 1
      for (int block = 0; block < min(ring.stages, work.num_blocks); ++block) {
        load_weights<kType, kWidth, kGroups>(&w_map, work, ring, block, block,
                                             kGrouped ? 0 : kWidth * kSlotBytes);
      }
    }
    if (Type<kType>::kBlocks && threadIdx.x * 32 < work.num_blocks) {
      prefetch_l2(args.w_scales + work.expert * args.expert_scale_stride +
                  work.row0 / 128 * args.w_scale_stride + work.block0 + threadIdx.x * 32);
    }
    if (Type<kType>::kChannels && threadIdx.x * 32 < min(kGroups * kTileRows, args.n - work.row0)) {
      prefetch_l2(args.w_scales + work.expert * args.expert_scale_stride + work.row0 + threadIdx.x * 32);
    }
    __syncthreads();  // the barriers are initialised
    if (kGrouped || args.late == 0) pdl_launch_dependents();
    if (!kGrouped || args.offsets_settled != 0) pdl_wait();
    run<kType, kWidth, kGroups, kGrouped>(&w_map, &x_map, args, work, ring, shared, scales, rank, splits);
  };
  if constexpr (!kGrouped) {
    start.template operator()<kTokens>();
  } else {
    // The product is only as wide as the expert's rows require.
    if constexpr (kTokens > 32) {
      if (work.num_rows > 32) return start.template operator()<kTokens>();
    }
    if constexpr (kTokens > 16) {
      if (work.num_rows > 16) return start.template operator()<32>();
    }
    if (work.num_rows > 8) return start.template operator()<16>();
    start.template operator()<8>();
  }
}

}  // namespace hadal::cuda::skinny
