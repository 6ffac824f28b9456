// Computes the experts of up to eight tokens in one kernel, which follows the router's kernel
// (experts/few/router.cu): it chooses the experts and computes gate_up, the activation and down.
//
// All tokens are the eight columns of every product (wgmma m64n8, with the rows of W on its 64-row side). So
// x is loaded once and nothing is gathered; a column whose token did not choose the expert is not stored.
// Every block adds up the router's parts and chooses the experts by itself; the last block writes the routing
// for the norm. Results are bit-identical to `route`, a product with this many splits, and silu_mul.
//
// Grid: there is one block per multiprocessor. All blocks must be resident at once, because they wait for
// each other.
// 1 gate_up. A block has a group of tiles and a split of k; a tile is 64 rows of W of an expert that some
//   token chose. The shared experts come first, because their tiles are known in advance and can be loaded
//   before pdl_wait. Tiles are assigned to the groups in turn. The sums of a split are written as float32.
// 2 Activation. A block has a run of consecutive tiles of `down`, which belong to at most two experts. It
//   adds up the splits of these experts' rows, activates them, and quantises them into shared memory. There
//   is no flag for a finished sum: the router's kernel has set every sum to kAbsent, and a reader polls until
//   it reads another value.
// 3 down. Each block computes its run of tiles.
// The weights of steps 1 and 3 are one stream: the producer continues with `down` without waiting for step 2,
// so memory is busy until the last load of `down` has been issued or the ring is full.
//
// Block: it has eight consumer warps in two warpgroups, which compute tiles in turn, and one producer warp.
// Ring: it has slots of 64 rows × 128 bytes of k of W, loaded by TMA with the 128-byte swizzle.
//   full[slot]   one arrival and the bytes; from the producer to the consumers
//   empty[slot]  four arrivals, one from each warp of the tile's warpgroup
//   x_full       the tokens' rows have been loaded
//   activated    one arrival from each consumer warp whose rows are activated; after this barrier completes,
//                the producer keeps more loads in flight. `activated` has one phase.
// A warpgroup waits for the first slot of a tile only after the last slot of the previous tile has arrived at
// the other warpgroup (named barriers kTurnBarrier and kTurnBarrier + 1). Otherwise it could be more than one
// round of the ring ahead, which the parity of a barrier cannot show. If a ring holds a whole number of
// down's tiles, `down` needs no turns, because a warpgroup uses the same slots in every round.
// kConsumerBarrier synchronises all consumers before (with such a ring) and after the activation. With FP8
// every 128 of k are promoted to float32 with both scales, one slot after the tensor cores. A thread has up
// to 224 registers.
#pragma once

#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/experts/few/activation.cuh"
#include "kernels/cuda/experts/few/product.cuh"

namespace hadal::cuda::few {

template <WeightType kType, int kValues, int kStages, int kDownSlots>
__global__ void __launch_bounds__(kThreads, 1)
    few_experts_kernel(const __grid_constant__ CUtensorMap gate_up_map,
                       const __grid_constant__ CUtensorMap down_map,
                       const __grid_constant__ CUtensorMap x_map, const __grid_constant__ Args args) {
  constexpr bool kFp8 = is_fp8_type<kType>;
  extern __shared__ std::byte shared_raw[];
  __shared__ Routing<kValues> routing;
  __shared__ OneToken one;
  Memory<kStages> memory = memory_of<kStages>(shared_raw, args);
  Ring<kStages>& ring = memory.ring;
  const int blocks = static_cast<int>(gridDim.x);
  const int this_block = static_cast<int>(blockIdx.x);
  const int splits = args.splits;
  const int split = this_block % splits;
  const int groups = blocks / splits;
  const int group = this_block / splits;  // if equal to `groups`, the block has no part in gate_up
  const int block0 = split * args.gate_up.num_blocks / splits;
  const int num_blocks = (split + 1) * args.gate_up.num_blocks / splits - block0;
  const int num_experts = args.route.num_experts;
  const bool produces = threadIdx.x == kConsumers;
  const int gate_up_tiles = args.gate_up.tiles;
  const int down_tiles = args.down.tiles;
  int tile = group;
  int block = 0;
  if (produces) {
    tma_prefetch_map(&gate_up_map);
    tma_prefetch_map(&x_map);
    make_barriers(memory);
    const int known_tiles = group < groups ? args.route.num_shared * gate_up_tiles : 0;
    for (int issued = 0; tile < known_tiles && issued < kStages; ++issued) {
      load_weights<kType>(&gate_up_map, ring, num_experts + place_of(args.gate_up, tile),
                          row_of(args.gate_up, tile), block0 + block);
      ring.advance();
      if (++block == num_blocks) {
        block = 0;
        tile += groups;
      }
    }
    tma_prefetch_map(&down_map);
  }
  routing.masks[threadIdx.x] = 0;
  float bias[kValues];
  const bool one_token = kValues == 8 && routes_one(args.route);
  if (one_token) {
    bias[0] = args.route.bias != nullptr && threadIdx.x < 256 ? args.route.bias[threadIdx.x] : 0.0F;
  } else {
    load_bias(args.route, bias);
  }
  __syncthreads();  // the masks are cleared and the barriers initialised
  pdl_wait();
  if (produces && group < groups) {
    mbarrier_arrive_expect_tx(memory.x_full, num_blocks * kXSlotBytes);
#pragma unroll 1
    for (int i = 0; i < num_blocks; ++i) {
      tma_load_2d(memory.x + i * kXSlotBytes, &x_map, memory.x_full,
                  (block0 + i) * (kFp8 ? kSlotK : kSlotK / 2), 0, L2Policy::kEvictLast);
    }
  }
  __syncwarp();
  if (kFp8 && static_cast<int>(threadIdx.x) < num_blocks * kTokens) {
    const int token = threadIdx.x % kTokens;
    const int of = threadIdx.x / kTokens;
    memory.x_scales[threadIdx.x] =
        token < args.route.m ? args.x_scales[(block0 + of) * args.x_scale_stride + token] : 0.0F;
  }
  if (one_token) {
    route_one(args.route, args.parts, bias[0], one, routing, this_block == blocks - 1);
  } else {
    route_few(args.route, args.parts, bias, routing, this_block == blocks - 1);
  }
  const int total = group < groups ? routing.num_active * gate_up_tiles : 0;
  const int begin = this_block * routing.num_active * down_tiles / blocks;
  const int end = (this_block + 1) * routing.num_active * down_tiles / blocks;

  if (threadIdx.x >= kConsumers) {
    if (produces) {
      // A load is issued once the load `window` positions before it has arrived.
      int window = kWindow;
      int position = ring.slot + static_cast<int>(ring.parity) * kStages;  // less than one round so far
      const auto load = [&](const CUtensorMap* map, int expert, int row0, int b) {
        mbarrier_wait(&ring.empty[ring.slot], ring.parity ^ 1);
        const int ahead = position - window;
        if (kWindow < kStages && ahead >= 0)
          mbarrier_wait(&ring.full[ahead % kStages], static_cast<uint32_t>(ahead / kStages) & 1U);
        load_weights<kType>(map, ring, expert, row0, b);
        ring.advance();
        ++position;
      };
#pragma unroll 1
      while (tile < total) {
        const int expert = weights_of(args, routing.order[place_of(args.gate_up, tile)]);
        const int row0 = row_of(args.gate_up, tile);
#pragma unroll 1
        for (; block < num_blocks; ++block) load(&gate_up_map, expert, row0, block0 + block);
        block = 0;
        tile += groups;
      }
#pragma unroll 1
      for (int t = begin; t < end; ++t) {
        const int expert = weights_of(args, routing.order[place_of(args.down, t)]);
        const int row0 = row_of(args.down, t);
#pragma unroll 1
        for (int b = 0; b < args.down.num_blocks; ++b) {
          if (kWindow < kStages) window = mbarrier_test(memory.activated, 0) ? kWindow : kDownWindow;
          load(&down_map, expert, row0, b);
        }
      }
      pdl_launch_dependents();
    }
    return;
  }

  const int lane = threadIdx.x % 32;
  const int own = threadIdx.x / 128;
  const int row_of_tile = static_cast<int>(threadIdx.x % 128) / 32 * 16 + lane / 4;
  const int all_rows = static_cast<int>(args.route.m) * (args.route.top_k + args.route.num_shared);
  const int gate_up_count = tile < total ? (total - group + groups - 1) / groups : 0;
  const int count = gate_up_count + (kDownSlots > 0 ? 0 : end - begin);  // tiles that need turns
  int index = own;                                                       // this warpgroup's next tile
  const auto take_turn = [&] {
    if (index > 0) named_barrier_sync(kTurnBarrier + own, 256);
  };
  const auto seen = [&] {
    if (index + 1 < count) named_barrier_arrive(kTurnBarrier + (own + 1) % kGroups, 256);
  };

  const auto gate_up_scale = [&](int i) {
    const int t = group + i * groups;
    if (!kFp8 || i >= gate_up_count) return 0.0F;
    return scale_of_block(args.gate_up, weights_of(args, routing.order[place_of(args.gate_up, t)]),
                          row_of(args.gate_up, t), block0, num_blocks);
  };
  float w_scale = gate_up_scale(index);
  if (group < groups) mbarrier_wait(memory.x_full, 0);
  // Moves the ring past the tiles `from` … `to` − 1, which belong to the other warpgroup.
  const auto pass = [&](int from, int to) {
#pragma unroll 1
    for (int i = from; i < min(to, count); ++i)
      ring.advance(i < gate_up_count ? num_blocks : args.down.num_blocks);
  };
  pass(0, own);
#pragma unroll 1
  for (; index < gate_up_count; index += kGroups) {
    const int t = group + index * groups;
    const int expert = routing.order[place_of(args.gate_up, t)];
    const float next_scale = gate_up_scale(index + kGroups);
    float acc[4];
    take_turn();
    consume<kType>(ring, num_blocks, memory.x, memory.x_scales, w_scale, acc, seen);
    pass(index + 1, index + kGroups);
    w_scale = next_scale;
    const uint32_t mask = routing.masks[expert];
    const int column = row_of(args.gate_up, t) + row_of_tile;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int token = 2 * (lane % 4) + c;
      if ((mask >> token & 1U) == 0) continue;
      const int row = routing.offsets[expert] + __popc(mask & ((1U << token) - 1));
      float* to = args.sums + (static_cast<int64_t>(split) * all_rows + row) * args.sums_n + column;
      publish(to, acc[c]);
      publish(to + 8, acc[2 + c]);
    }
  }

  const int first_place = place_of(args.down, begin);
  const auto activate = [&] {
    // The other warpgroup of this block may still be computing sums that this warpgroup needs, so an earlier
    // read would only have to be repeated.
    if (kDownSlots > 0) named_barrier_sync(kConsumerBarrier, kConsumers);
    if (begin < end) {
      const int places = place_of(args.down, end - 1) - first_place + 1;
      activate_rows<kType>(args, routing, first_place, places, memory);
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(memory.activated);
    fence_proxy_async_shared();  // the tensor cores read the activated rows
    named_barrier_sync(kConsumerBarrier, kConsumers);
  };
  const auto store_tile = [&](int t, int expert, const float(&acc)[4]) {
    const int rows = __popc(routing.masks[expert]);
    const int column = row_of(args.down, t) + row_of_tile;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int i = 2 * (lane % 4) + c;
      if (i >= rows) continue;
      using T = Row16<kType>;
      T* to = static_cast<T*>(args.y) + static_cast<int64_t>(routing.offsets[expert] + i) * args.y_stride +
              column;
      to[0] = round_to<T>(acc[c]);
      to[8] = round_to<T>(acc[2 + c]);
    }
  };

  if constexpr (kFp8 && kDownSlots > 0) {
    // A batch of tiles fills the ring, so a warpgroup uses the same slots in every batch and needs no turns.
    constexpr int kSlots = kDownSlots;
    constexpr int kMine = kStages / kSlots / kGroups;  // tiles of this warpgroup in a batch
    static_assert(kMine * kSlots <= 32);
    const int first_position = gate_up_count * num_blocks;
    const auto batch_scales = [&](int first) {  // scales of this warpgroup's tiles, one in each lane
      const int t = first + own + lane / kSlots * kGroups;
      if (lane >= kMine * kSlots || t >= end) return 0.0F;
      const int expert = weights_of(args, routing.order[place_of(args.down, t)]);
      return args.down.scales[expert * args.down.expert_scale_stride +
                              row_of(args.down, t) / 128 * args.down.scale_stride + lane % kSlots];
    };
    float scales = batch_scales(begin);
    activate();
    const uint32_t w_tiles = wgmma_k_major_low(ring.slots);
    const uint32_t x_tiles = wgmma_k_major_low(memory.active);
#pragma unroll 1
    for (int first = begin; first < end; first += kMine * kGroups) {
      const int position = first_position + (first - begin) * kSlots;
      float sums[kMine][kSlots][4];
      const float these = scales;
      scales = batch_scales(first + kMine * kGroups);
      const auto finish = [&](int j, const float(&tile)[kSlots][4]) {
        const int t = first + own + j * kGroups;
        const int place = place_of(args.down, min(t, end - 1));
        float acc[4] = {};
#pragma unroll
        for (int b = 0; b < kSlots; ++b) {
          const float2 scale = *reinterpret_cast<const float2*>(
              memory.active_scales + ((place - first_place) * kSlots + b) * kTokens + 2 * (lane % 4));
          const float w = __shfl_sync(kWarp, these, j * kSlots + b);
          acc[0] = fmaf(tile[b][0], scale.x * w, acc[0]);
          acc[1] = fmaf(tile[b][1], scale.y * w, acc[1]);
          acc[2] = fmaf(tile[b][2], scale.x * w, acc[2]);
          acc[3] = fmaf(tile[b][3], scale.y * w, acc[3]);
          const int at = position + (own + j * kGroups) * kSlots + b;
          if (lane == 0 && t < end) mbarrier_arrive(&ring.empty[at % kStages]);
        }
        if (t < end) store_tile(t, routing.order[place], acc);
      };
#pragma unroll
      for (int j = 0; j < kMine; ++j) {
        const int t = first + own + j * kGroups;
        const int place = place_of(args.down, min(t, end - 1)) - first_place;
        const int at = position + (own + j * kGroups) * kSlots;
        if (t < end) {
#pragma unroll
          for (int b = 0; b < kSlots; ++b)
            mbarrier_wait(&ring.full[(at + b) % kStages], static_cast<uint32_t>((at + b) / kStages) & 1U);
        }
        wgmma_fence();
#pragma unroll
        for (int b = 0; b < kSlots; ++b) {
          const uint32_t w_tile = w_tiles + (at + b) % kStages * (kSlotBytes >> 4);
          const uint32_t x_tile = x_tiles + (place * kSlots + b) * (kXSlotBytes >> 4);
#pragma unroll
          for (int step = 0; step < 4; ++step)
            wgmma_e4m3<8>(sums[j][b], wgmma_k_major_of(w_tile + step * 2),
                          wgmma_k_major_of(x_tile + step * 2), step > 0);
        }
        wgmma_commit();
        if (j == 0) continue;
        wgmma_wait<1>();
#pragma unroll
        for (int b = 0; b < kSlots; ++b) wgmma_pin(sums[j - 1][b]);
        finish(j - 1, sums[j - 1]);
      }
      wgmma_wait<0>();
#pragma unroll
      for (int b = 0; b < kSlots; ++b) wgmma_pin(sums[kMine - 1][b]);
      finish(kMine - 1, sums[kMine - 1]);
    }
    return;
  }

  const auto down_scale = [&](int i) {
    const int t = begin + i - gate_up_count;
    if (!kFp8 || i >= count) return 0.0F;
    return scale_of_block(args.down, weights_of(args, routing.order[place_of(args.down, t)]),
                          row_of(args.down, t), 0, args.down.num_blocks);
  };
  w_scale = down_scale(index);
  activate();
#pragma unroll 1
  for (; index < count; index += kGroups) {
    const int t = begin + index - gate_up_count;
    const int place = place_of(args.down, t);
    const int expert = routing.order[place];
    const int x_slot = (place - first_place) * args.down.num_blocks;
    const float next_scale = down_scale(index + kGroups);
    float acc[4];
    take_turn();
    consume<kType>(ring, args.down.num_blocks, memory.active + x_slot * kXSlotBytes,
                   memory.active_scales + x_slot * kTokens, w_scale, acc, seen);
    pass(index + 1, index + kGroups);
    w_scale = next_scale;
    store_tile(t, expert, acc);
  }
}

}  // namespace hadal::cuda::few
