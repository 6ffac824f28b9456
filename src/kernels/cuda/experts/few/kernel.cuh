// The experts of up to eight tokens in one kernel behind the router's (experts/few/router.cu): the choice of
// experts, gate_up, the activation and down.
//
// All tokens are the eight columns of every product (wgmma m64n8, rows of W on its 64-row side): x is loaded
// once, without gathering, and a column that did not choose the expert is not stored. Every block adds the
// router's parts up and chooses the experts for itself; the last block writes the routing for the norm. Bits
// are those of `route`, of a product in so many splits and of silu_mul.
//
// Grid: a block a multiprocessor, all of them there at once, for they wait for each other.
// 1 gate_up: block = (group of tiles, split of k); tile = 64 rows of W of an expert that has rows, the shared
//   experts first: their tiles, known ahead, are asked for before pdl_wait. Tiles go round over the groups.
//   Sums of a split leave in float32.
// 2 A block has a run of consecutive tiles of `down`, so rows of at most two experts: it adds their splits
//   up, activates and quantises them into shared memory. Nothing says that the splits are there but they
//   themselves: the router's kernel left kAbsent in their place, and who reads that reads again.
// 3 down.
// W is one stream through all of it: the producer does not wait between 1 and 3, so memory is busy until the
// last load of `down` has been asked for, or the ring is full.
//
// Block: eight consumer warps, two warpgroups that take tiles in turns, then a producer warp.
// Ring: slots of 64 rows × 128 bytes of k of W, by TMA with the 128-byte swizzle.
//   full[slot]   one arrival and the bytes; from the producer to the consumers
//   empty[slot]  four arrivals, a warp of the tile's warpgroup each
//   x_full       the tokens' rows
//   activated    an arrival of every consumer warp whose rows are; from then on the producer asks for more
//     slots ahead. One phase
// A warpgroup waits for the first slot of a tile only after the other one has seen the last of the tile
// before (named barriers kTurnBarrier, + 1): else it could be more than a round of a slot ahead, and a parity
// says nothing of that. Where a ring is a whole number of down's tiles, `down` needs no turns: a warpgroup
// meets the same slots in every round. kConsumerBarrier: all consumers, about the activation.
// FP8: every 128 of k promoted to float32 with both scales, one slot behind the tensor cores.
// Registers: up to 224 a thread.
#pragma once

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/spin.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/elementwise/rows.cuh"
#include "kernels/cuda/experts/few/route.cuh"

namespace hadal::cuda::few {

constexpr int kSlotBytes = kTileRows * kSlotK;  // of W
constexpr int kXSlotBytes = kTokens * kSlotK;   // of x
static_assert(kMaxDownSlots <= 32);             // scale_of_block: a lane each
// Slots that a block has asked for and that are not there. More of gate_up's only wait for each other. Of
// `down`'s, until all sums of the block's rows are read: those reads wait behind them, 2 to 5 us with eight.
constexpr int kWindow = 8;
constexpr int kDownWindow = 3;
constexpr int kLeastShared = 120 * 1024;  // dynamic: no two blocks on a multiprocessor
constexpr int kConsumerBarrier = 1;
constexpr int kTurnBarrier = 2;

template <WeightType kType>
constexpr bool is_fp8_type = kType == WeightType::kFp8Block;

template <int kStages>
struct Ring {
  static_assert((kStages & (kStages - 1)) == 0, "advance is shifts and masks");
  std::byte* slots;
  Mbarrier* full;
  Mbarrier* empty;
  int slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance(int count = 1) {
    slot += count;
    parity ^= static_cast<uint32_t>(slot / kStages) & 1U;
    slot %= kStages;
  }
};

// W of one block of k into the ring's slot. One thread.
template <WeightType kType, int kStages>
__device__ __forceinline__ void load_weights(const CUtensorMap* map, const Ring<kStages>& ring, int expert,
                                             int row0, int block) {
  mbarrier_arrive_expect_tx(&ring.full[ring.slot], kSlotBytes);
  tma_load_3d(ring.slots + ring.slot * kSlotBytes, map, &ring.full[ring.slot],
              block * (is_fp8_type<kType> ? kSlotK : kSlotK / 2), row0, expert, L2Policy::kEvictFirst);
}

// One tile's sums by one warpgroup: acc[2 · h + c] is row 16 · warp + 8 · h + lane / 4, column 2 · (lane % 4)
// + c. x: slots of eight rows; x_scales [blocks][8]; w_scale: lane b holds that of block b. `seen`: after the
// last slot's arrival.
template <WeightType kType, int kStages, typename Seen>
__device__ __forceinline__ void consume(Ring<kStages>& ring, int num_blocks, const std::byte* x,
                                        const float* x_scales, float w_scale, float (&acc)[4],
                                        const Seen& seen) {
  const int lane = threadIdx.x % 32;
  const uint32_t w_tiles = wgmma_k_major_low(ring.slots);
  const uint32_t x_tiles = wgmma_k_major_low(x);
  int last_slot = 0;
  const auto issue = [&](float(&sums)[4], int block, bool add) {
    mbarrier_wait(&ring.full[ring.slot], ring.parity);
    if (block == num_blocks - 1) seen();
    const uint32_t w_tile = w_tiles + ring.slot * (kSlotBytes >> 4);
    const uint32_t x_tile = x_tiles + block * (kXSlotBytes >> 4);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint64_t a = wgmma_k_major_of(w_tile + step * 2);
      const uint64_t b = wgmma_k_major_of(x_tile + step * 2);
      if constexpr (is_fp8_type<kType>) {
        wgmma_e4m3<8>(sums, a, b, step > 0);
      } else {
        wgmma_16_bit<Row16<kType>, 8>(sums, a, b, add || step > 0);
      }
    }
    wgmma_commit();
  };
  const auto release = [&](int slot) {
    if (lane == 0) mbarrier_arrive(&ring.empty[slot]);
  };
  if constexpr (!is_fp8_type<kType>) {
    wgmma_pin(acc);
#pragma unroll 1
    for (int block = 0; block < num_blocks; ++block) {
      issue(acc, block, block > 0);
      wgmma_wait<1>();
      if (block > 0) release(last_slot);
      last_slot = ring.slot;
      ring.advance();
    }
    wgmma_wait<0>();
    wgmma_pin(acc);
    release(last_slot);
  } else {
    float even[4];
    float odd[4];
    int done = 0;
    const auto promote = [&](float(&sums)[4]) {
      wgmma_pin(sums);
      release(last_slot);
      const float2 scale = *reinterpret_cast<const float2*>(x_scales + done * kTokens + 2 * (lane % 4));
      const float w = __shfl_sync(kWarp, w_scale, done);
      acc[0] = fmaf(sums[0], scale.x * w, acc[0]);
      acc[1] = fmaf(sums[1], scale.y * w, acc[1]);
      acc[2] = fmaf(sums[2], scale.x * w, acc[2]);
      acc[3] = fmaf(sums[3], scale.y * w, acc[3]);
      ++done;
    };
    const auto step = [&](float(&now)[4], float(&before)[4], int block) {
      issue(now, block, false);
      wgmma_wait<1>();
      promote(before);
      last_slot = ring.slot;
      ring.advance();
    };
#pragma unroll
    for (float& value : acc) value = 0.0F;
    issue(even, 0, false);
    last_slot = ring.slot;
    ring.advance();
    int block = 1;
#pragma unroll 1
    for (; block + 1 < num_blocks; block += 2) {
      step(odd, even, block);
      step(even, odd, block + 1);
    }
    if (block < num_blocks) {
      step(odd, even, block);
      wgmma_wait<0>();
      promote(odd);
    } else {
      wgmma_wait<0>();
      promote(even);
    }
  }
}

// Offsets into dynamic shared memory from a 1024-byte boundary.
struct SharedPlan {
  int x, active, x_scales, active_scales, barriers, bytes;

  __host__ __device__ SharedPlan(int stages, int x_slots, int active_slots) {
    x = stages * kSlotBytes;
    active = x + x_slots * kXSlotBytes;
    x_scales = active + active_slots * kXSlotBytes;
    active_scales = x_scales + x_slots * kTokens * 4;
    barriers = active_scales + active_slots * kTokens * 4;
    bytes = barriers + (2 * stages + 2) * 8;
  }
};

// One of the two products.
struct Product {
  int num_blocks = 0;      // slots of k
  int tiles = 0;           // of an expert, at least 2
  uint32_t per_tiles = 0;  // 2^32 / tiles, rounded up
  const float* scales = nullptr;
  int64_t scale_stride = 0, expert_scale_stride = 0;
};
// Which expert of routing.order a tile is of, and which rows.
__device__ __forceinline__ int place_of(const Product& w, int tile) {
  return static_cast<int>(
      __umulhi(static_cast<uint32_t>(tile), w.per_tiles));  // exact: tile · w.tiles < 2^32
}
__device__ __forceinline__ int row_of(const Product& w, int tile) {
  return (tile - place_of(w, tile) * w.tiles) * kTileRows;
}

struct Args {
  RouteParams route;
  const float* parts = nullptr;
  float* sums = nullptr;  // [splits][rows][sums_n]
  int sums_n = 0;         // 2 · intermediate
  int splits = 0;
  int x_slots = 0;
  Product gate_up, down;
  const float* x_scales = nullptr;
  int64_t x_scale_stride = 0;
  void* y = nullptr;  // [rows, y_stride]
  int y_stride = 0;
  int power_of_two = 0;  // of the activation's scales
};

template <int kStages>
struct Memory {
  std::byte* base;
  Ring<kStages> ring;
  std::byte* x;
  std::byte* active;
  float* x_scales;
  float* active_scales;
  Mbarrier* x_full;
  Mbarrier* activated;
};
template <int kStages>
__device__ __forceinline__ Memory<kStages> memory_of(std::byte* raw, const Args& args) {
  std::byte* base = raw + (1024 - shared_address(raw) % 1024) % 1024;
  const SharedPlan plan(kStages, args.x_slots, 2 * args.down.num_blocks);
  auto* barriers = reinterpret_cast<Mbarrier*>(base + plan.barriers);
  return {base,
          {base, barriers, barriers + kStages},
          base + plan.x,
          base + plan.active,
          reinterpret_cast<float*>(base + plan.x_scales),
          reinterpret_cast<float*>(base + plan.active_scales),
          barriers + 2 * kStages,
          barriers + 2 * kStages + 1};
}
template <int kStages>
__device__ __forceinline__ void make_barriers(const Memory<kStages>& memory) {
#pragma unroll 1
  for (int slot = 0; slot < kStages; ++slot) {
    mbarrier_init(&memory.ring.full[slot], 1);
    mbarrier_init(&memory.ring.empty[slot], 4);
  }
  mbarrier_init(memory.x_full, 1);
  mbarrier_init(memory.activated, kConsumers / 32);
  mbarrier_init_fence();
  fence_proxy_async_shared();
}

// The scale of block `lane` of a tile's rows.
__device__ __forceinline__ float scale_of_block(const Product& w, int expert, int row0, int block0,
                                                int num_blocks) {
  const int lane = threadIdx.x % 32;
  if (lane >= num_blocks) return 0.0F;
  return w.scales[expert * w.expert_scale_stride + row0 / 128 * w.scale_stride + block0 + lane];
}

// Sums of a split leave and arrive word by word: a word is there once it is not kAbsent, which the router's
// kernel wrote.
__device__ __forceinline__ void publish(float* to, float value) {
  const uint32_t bits = __float_as_uint(value);
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(bits == kAbsent ? 0x7fffffffU : bits)
               : "memory");
}
__device__ __forceinline__ uint4 fetch(const float* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ bool absent(const uint4& v) {
  return max(max(v.x, v.y), max(v.z, v.w)) == kAbsent;
}
__device__ __forceinline__ float4 floats(const uint4& v) {
  return {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
}

// silu(gate) ⊙ up of the block's experts' rows, from the sums of all splits, into `active`. All consumers,
// whole warps.
template <WeightType kType, int kValues, int kStages>
__device__ __forceinline__ void activate_rows(const Args& args, const Routing<kValues>& routing,
                                              int first_place, int places, const Memory<kStages>& memory) {
  using T = Row16<kType>;
  constexpr bool kFp8 = is_fp8_type<kType>;
  const int intermediate = args.sums_n / 2;
  const int quads = intermediate / 4;
  const int all_rows = static_cast<int>(args.route.m) * (args.route.top_k + args.route.num_shared);
  const int64_t stride = static_cast<int64_t>(all_rows) * args.sums_n;
  const int first_expert = routing.order[first_place];
  const int second_expert = routing.order[first_place + places - 1];
  const int first_rows = __popc(routing.masks[first_expert]);
  const int rows = first_rows + (places > 1 ? __popc(routing.masks[second_expert]) : 0);
#pragma unroll 1
  for (int task = static_cast<int>(threadIdx.x); task < rows * quads; task += kConsumers) {
    const int which = task / quads;
    const int feature = (task - which * quads) * 4;
    const int place = which < first_rows ? 0 : 1;
    const int i = which - place * first_rows;  // row of the expert
    const int row = routing.offsets[place == 0 ? first_expert : second_expert] + i;
    const float* from = args.sums + static_cast<int64_t>(row) * args.sums_n + feature;
    uint4 gates[kMaxSplits];
    uint4 ups[kMaxSplits];
#pragma unroll
    for (int s = 0; s < kMaxSplits; ++s) {
      if (s >= args.splits) continue;
      gates[s] = fetch(from + s * stride);
      ups[s] = fetch(from + s * stride + intermediate);
    }
    const SpinDeadline deadline;
    for (bool waits = true; waits;) {
      waits = false;
#pragma unroll
      for (int s = 0; s < kMaxSplits; ++s) {
        if (s >= args.splits || !(absent(gates[s]) || absent(ups[s]))) continue;
        waits = true;
        gates[s] = fetch(from + s * stride);
        ups[s] = fetch(from + s * stride + intermediate);
      }
      if (waits && deadline.has_passed()) __trap();
    }
    float4 gate = floats(gates[0]);
    float4 up = floats(ups[0]);
#pragma unroll
    for (int s = 1; s < kMaxSplits; ++s) {
      if (s >= args.splits) continue;
      const float4 g = floats(gates[s]);
      const float4 u = floats(ups[s]);
      gate.x += g.x, gate.y += g.y, gate.z += g.z, gate.w += g.w;
      up.x += u.x, up.y += u.y, up.z += u.z, up.w += u.w;
    }
    // The product's own rounding.
    const auto value = [](float g, float u) {
      return silu_times(to_f32(round_to<T>(g)), to_f32(round_to<T>(u)));
    };
    const Floats8 y{{value(gate.x, up.x), value(gate.y, up.y), value(gate.z, up.z), value(gate.w, up.w), 0.0F,
                     0.0F, 0.0F, 0.0F}};
    const int byte = feature * (kFp8 ? 1 : 2);
    const int slot = place * args.down.num_blocks + byte / kSlotK;
    const int chunk = byte % kSlotK / 16;
    std::byte* to = memory.active + slot * kXSlotBytes + i * kSlotK + ((chunk ^ i) << 4) + byte % 16;
    if constexpr (kFp8) {
      const float scale = group_scale(lanes_max(abs_max8(y)), args.power_of_two != 0);
      *reinterpret_cast<uint32_t*>(to) = codes8(y, scale, false).x;
      if (threadIdx.x % 32 == 0) memory.active_scales[slot * kTokens + i] = scale;
    } else {
      *reinterpret_cast<uint2*>(to) = {pack_two<T>(y.v[0], y.v[1]), pack_two<T>(y.v[2], y.v[3])};
    }
  }
}

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
  const int group = this_block / splits;  // groups: a block without a part in gate_up
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
  __syncthreads();  // masks are clear, barriers exist
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
      // A load waits for the one `window` before it to be there.
      int window = kWindow;
      int position = ring.slot + static_cast<int>(ring.parity) * kStages;  // less than a round so far
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
        const int expert = routing.order[place_of(args.gate_up, tile)];
        const int row0 = row_of(args.gate_up, tile);
#pragma unroll 1
        for (; block < num_blocks; ++block) load(&gate_up_map, expert, row0, block0 + block);
        block = 0;
        tile += groups;
      }
#pragma unroll 1
      for (int t = begin; t < end; ++t) {
        const int expert = routing.order[place_of(args.down, t)];
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
  const int count = gate_up_count + (kDownSlots > 0 ? 0 : end - begin);  // tiles that take turns
  int index = own;                                                       // of the next one of this warpgroup
  const auto take_turn = [&] {
    if (index > 0) named_barrier_sync(kTurnBarrier + own, 256);
  };
  const auto seen = [&] {
    if (index + 1 < count) named_barrier_arrive(kTurnBarrier + (own + 1) % kGroups, 256);
  };

  const auto gate_up_scale = [&](int i) {
    const int t = group + i * groups;
    if (!kFp8 || i >= gate_up_count) return 0.0F;
    return scale_of_block(args.gate_up, routing.order[place_of(args.gate_up, t)], row_of(args.gate_up, t),
                          block0, num_blocks);
  };
  float w_scale = gate_up_scale(index);
  if (group < groups) mbarrier_wait(memory.x_full, 0);
  // The ring goes past tiles `from` … `to` − 1, which are other warpgroups'.
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
    // Sums that the block's other warpgroup still works at are not there for others either: to read them now
    // is to read twice.
    if (kDownSlots > 0) named_barrier_sync(kConsumerBarrier, kConsumers);
    if (begin < end) {
      const int places = place_of(args.down, end - 1) - first_place + 1;
      activate_rows<kType>(args, routing, first_place, places, memory);
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(memory.activated);
    fence_proxy_async_shared();  // the tensor cores read what was activated
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
    // A batch is a ring of tiles, so a warpgroup meets the same slots in each: no turns.
    constexpr int kSlots = kDownSlots;
    constexpr int kMine = kStages / kSlots / kGroups;  // tiles of a batch
    static_assert(kMine * kSlots <= 32);
    const int first_position = gate_up_count * num_blocks;
    const auto batch_scales = [&](int first) {  // of this warpgroup's tiles: a lane each
      const int t = first + own + lane / kSlots * kGroups;
      if (lane >= kMine * kSlots || t >= end) return 0.0F;
      return args.down.scales[routing.order[place_of(args.down, t)] * args.down.expert_scale_stride +
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
    return scale_of_block(args.down, routing.order[place_of(args.down, t)], row_of(args.down, t), 0,
                          args.down.num_blocks);
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

template <WeightType kType, int kValues, int kStages, int kDownSlots>
void launch_few(const FewExpertsParams& p, const float* parts, float* sums, const Launch& launch) {
  using Element = std::conditional_t<is_fp8_type<kType>, fp8_e4m3, Row16<kType>>;
  constexpr int kElements = kSlotK / static_cast<int>(sizeof(Element));
  const auto map_of = [&](const MatrixWeight& w, int64_t stride) {
    return make_tensor_map<3, Element>(static_cast<const Element*>(w.data),
                                       {w.k, w.n, p.route.num_experts + p.route.num_shared},
                                       {w.row_stride, stride}, {kElements, kTileRows, 1});
  };
  const auto product = [&](const MatrixWeight& w, int64_t scale_stride) {
    return Product{
        .num_blocks = static_cast<int>(w.k / kElements),
        .tiles = static_cast<int>(w.n / kTileRows),
        .per_tiles = static_cast<uint32_t>(((int64_t{1} << 32) + w.n / kTileRows - 1) / (w.n / kTileRows)),
        .scales = w.scales,
        .scale_stride = w.scale_stride,
        .expert_scale_stride = scale_stride};
  };
  Args args;
  args.route = p.route;
  args.parts = parts;
  args.sums = sums;
  args.sums_n = static_cast<int>(p.gate_up.n);
  args.splits = p.splits;
  args.gate_up = product(p.gate_up, p.gate_up_scale_stride);
  args.down = product(p.down, p.down_scale_stride);
  args.x_slots = (args.gate_up.num_blocks + args.splits - 1) / args.splits;
  args.x_scales = p.x_quantized.scales;
  args.x_scale_stride = p.x_quantized.scale_stride;
  args.y = p.y;
  args.y_stride = static_cast<int>(p.down.n);
  args.power_of_two = p.x_quantized.power_of_two ? 1 : 0;
  const void* x = is_fp8_type<kType> ? p.x_quantized.codes : p.x;
  const CUtensorMap x_map = make_tensor_map<2, Element>(
      static_cast<const Element*>(x), {p.gate_up.k, p.route.m},
      {is_fp8_type<kType> ? p.x_quantized.stride : p.x_stride}, {kElements, kTokens});
  const int shared = SharedPlan(kStages, args.x_slots, 2 * args.down.num_blocks).bytes + 1024;
  launch_kernel<few_experts_kernel<kType, kValues, kStages, kDownSlots>>(
      launch, dim3(static_cast<unsigned>(launch.num_sms)), dim3(kThreads),
      static_cast<size_t>(shared > kLeastShared ? shared : kLeastShared), map_of(p.gate_up, p.gate_up_stride),
      map_of(p.down, p.down_stride), x_map, args);
}

template <WeightType kType, int kStages, int kDownSlots>
void launch_config(const FewExpertsParams& p, const float* parts, float* sums, const Launch& launch) {
  if (p.route.num_experts <= 64) return launch_few<kType, 2, kStages, kDownSlots>(p, parts, sums, launch);
  if (p.route.num_experts <= 160) return launch_few<kType, 5, kStages, kDownSlots>(p, parts, sums, launch);
  launch_few<kType, 8, kStages, kDownSlots>(p, parts, sums, launch);
}

template <WeightType kType>
void experts_of(const FewExpertsParams& p, const float* parts, float* sums, const Launch& launch) {
  if constexpr (is_fp8_type<kType>) {
    if (p.down.k == 2 * kSlotK) return launch_config<kType, 16, 2>(p, parts, sums, launch);
  }
  launch_config<kType, 8, 0>(p, parts, sums, launch);
}

}  // namespace hadal::cuda::few
