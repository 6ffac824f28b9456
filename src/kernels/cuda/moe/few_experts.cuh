// The experts of up to eight tokens in one kernel behind the router's (few_router.cu): the choice of experts,
// gate_up, the activation and down.
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
// 2 Blocks count themselves in `arrived` (the router sets it to 0) and wait until all have.
// 3 A block has a run of consecutive tiles of `down`, so rows of at most two experts: it adds their splits
//   up, activates and quantises them into shared memory.
// 4 down.
// W is one stream through all of it: the producer does not wait between 1 and 4, so memory is busy until the
// last load of `down` has been asked for, or the ring is full.
//
// Block: eight consumer warps, two warpgroups that take tiles in turns, then a producer warp.
// Ring: slots of 64 rows × 128 bytes of k of W, by TMA with the 128-byte swizzle.
//   full[slot]   one arrival and the bytes; from the producer to the consumers
//   empty[slot]  four arrivals, a warp of the tile's warpgroup each
//   x_full       the tokens' rows
// A warpgroup waits for the first slot of a tile only after the other one has seen the last of the tile
// before (named barriers kTurnBarrier, + 1): else it could be more than a round of a slot ahead, and a parity
// says nothing of that. kConsumerBarrier: all consumers, where blocks meet and about the activation.
// FP8: every 128 of k promoted to float32 with both scales, one slot behind the tensor cores.
// Registers: up to 224 a thread.
#pragma once

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/elementwise/rows.cuh"
#include "kernels/cuda/moe/few_experts.h"
#include "kernels/cuda/moe/route_gate.cuh"

namespace hadal::cuda::few {

constexpr int kTokens = static_cast<int>(kMaxFewTokens);
constexpr int kGroups = 2;  // consumer warpgroups
constexpr int kConsumers = kGroups * 128;
constexpr int kThreads = kConsumers + 32;
constexpr int kWarps = kThreads / 32;
constexpr int kSlotBytes = kTileRows * kSlotK;  // of W
constexpr int kXSlotBytes = kTokens * kSlotK;   // of x
static_assert(kMaxExperts == kThreads);         // a thread each
static_assert(kMaxDownSlots <= 32);             // scale_of_block: a lane each
// 64 KB in flight on each multiprocessor. With more, loads of `down` hold up gate_up's last ones: 11 slots
// cost one token of V3 0.3 us, 23 slots 2.
constexpr int kStages = 8;
constexpr int kLeastShared = 120 * 1024;  // dynamic: no two blocks on a multiprocessor
constexpr int kConsumerBarrier = 1;
constexpr int kTurnBarrier = 2;

template <WeightType kType>
constexpr bool is_fp8_type = kType == WeightType::kFp8Block;

// Which experts have which tokens; in shared memory.
template <int kValues>
struct Routing {
  alignas(16) float scores[kTokens][32 * kValues];
  uint32_t masks[kMaxExperts];  // bit t: token t chose it
  int offsets[kMaxExperts];     // first row
  uint16_t order[kMaxExperts];  // those that have rows, the shared ones first
  int totals[kWarps];
  int num_active;    // of `order`
  int num_distinct;  // routed
};

// All threads, after barriers that order clear_masks; ends with a barrier. `writes`: stores the routing for
// the kernels behind.
template <int kValues>
__device__ __forceinline__ void route_few(const RouteParams& p, const float* parts,
                                          const float (&bias)[kValues], Routing<kValues>& r, bool writes) {
  const int lane = threadIdx.x % 32;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int num_slots = p.top_k + p.num_shared;
  const int experts = p.num_experts + p.num_shared;
  const bool mine = warp < static_cast<int>(p.m);
  int id = 0;
  if (mine) {
    const int source = p.valid == nullptr || warp < *p.valid ? warp : 0;
    float part[kRouterSplits][kValues];
#pragma unroll
    for (int s = 0; s < kRouterSplits; ++s) {
      const float* from = parts + (s * static_cast<int>(p.m) + source) * p.num_experts + lane * kValues;
      if (kValues % 4 == 0 && p.num_experts == 32 * kValues) {
#pragma unroll
        for (int i = 0; i + 3 < kValues; i += 4) {
          const float4 four = __ldcg(reinterpret_cast<const float4*>(from + i));
          part[s][i] = four.x;
          part[s][i + 1] = four.y;
          part[s][i + 2] = four.z;
          part[s][i + 3] = four.w;
        }
      } else {
#pragma unroll
        for (int i = 0; i < kValues; ++i)
          part[s][i] = lane * kValues + i < p.num_experts ? __ldcg(from + i) : 0.0F;
      }
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      float sum = part[0][i];
#pragma unroll
      for (int s = 1; s < kRouterSplits; ++s) sum += part[s][i];
      r.scores[warp][lane * kValues + i] = sum;
    }
    // A lane's scores overwrite the logits that it read.
    id = with_shared(p, select_experts(p, r.scores[warp], bias, r.scores[warp]));
    if (lane < num_slots) atomicOr(&r.masks[id], 1U << warp);
  }
  __syncthreads();
  const int expert = static_cast<int>(threadIdx.x);
  const uint32_t mask = expert < experts ? r.masks[expert] : 0;
  const int own = __popc(mask) | (mask != 0 ? 1 << 16 : 0);  // rows, experts
  int sum = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kWarp, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) r.totals[warp] = sum;
  __syncthreads();
  const int before = static_cast<int>(
      __reduce_add_sync(kWarp, static_cast<unsigned>(lane < warp && lane < kWarps ? r.totals[lane] : 0)));
  const int first = before + sum - own;
  const int row = first & 0xffff;
  if (expert < experts) {
    r.offsets[expert] = row;
    const int place = first >> 16;
    const bool shared = expert >= p.num_experts;
    if (mask != 0)
      r.order[shared ? expert - p.num_experts : place + p.num_shared] = static_cast<uint16_t>(expert);
    if (expert == experts - 1) {
      r.num_active = (first + own) >> 16;
      r.num_distinct = r.num_active - p.num_shared;
    }
    if (writes) {
      p.expert_offsets[expert] = row;
      if (expert == experts - 1) p.expert_offsets[experts] = row + (own & 0xffff);
    }
  }
  __syncthreads();
  if (!writes) return;
  if (threadIdx.x == 0 && p.num_distinct != nullptr) *p.num_distinct = r.num_distinct;
  if (!mine) return;
  store_choice(p, warp, id, weigh_experts(p, r.scores[warp], id));
  if (lane >= num_slots) return;
  const int place = r.offsets[id] + __popc(r.masks[id] & ((1U << warp) - 1));
  p.row_of[warp * num_slots + lane] = place;
  p.token_of[place] = warp;
}

template <int kValues>
__device__ __forceinline__ void load_bias(const RouteParams& p, float (&bias)[kValues]) {
#pragma unroll
  for (int i = 0; i < kValues; ++i) bias[i] = 0.0F;
  if (p.kind == GateKind::kSigmoidNoAuxTc && p.bias != nullptr)
    load_lane_values(p.bias, p.num_experts, 0.0F, bias);
}

struct Ring {
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
static_assert((kStages & (kStages - 1)) == 0, "advance is shifts and masks");

// W of one block of k into the ring's slot. One thread.
template <WeightType kType>
__device__ __forceinline__ void load_weights(const CUtensorMap* map, const Ring& ring, int expert, int row0,
                                             int block) {
  mbarrier_arrive_expect_tx(&ring.full[ring.slot], kSlotBytes);
  tma_load_3d(ring.slots + ring.slot * kSlotBytes, map, &ring.full[ring.slot],
              block * (is_fp8_type<kType> ? kSlotK : kSlotK / 2), row0, expert, L2Policy::kEvictFirst);
}

// One tile's sums by one warpgroup: acc[2 · h + c] is row 16 · warp + 8 · h + lane / 4, column 2 · (lane % 4)
// + c. x: slots of eight rows; x_scales [blocks][8]; w_scale: lane b holds that of block b. `seen`: after the
// last slot's arrival.
template <WeightType kType, typename Seen>
__device__ __forceinline__ void consume(Ring& ring, int num_blocks, const std::byte* x, const float* x_scales,
                                        float w_scale, float (&acc)[4], const Seen& seen) {
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
  int x, x_scales, barriers, bytes;

  __host__ __device__ explicit SharedPlan(int x_slots) {
    x = kStages * kSlotBytes;
    x_scales = x + x_slots * kXSlotBytes;
    barriers = x_scales + x_slots * kTokens * 4;
    bytes = barriers + (2 * kStages + 1) * 8;
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
  int* arrived = nullptr;
  int sums_n = 0;  // 2 · intermediate
  int splits = 0;
  int x_slots = 0;
  Product gate_up, down;
  const float* x_scales = nullptr;
  int64_t x_scale_stride = 0;
  void* y = nullptr;  // [rows, y_stride]
  int y_stride = 0;
  int power_of_two = 0;  // of the activation's scales
};

struct Memory {
  std::byte* base;
  Ring ring;
  std::byte* x;
  float* x_scales;
  Mbarrier* x_full;
};
__device__ __forceinline__ Memory memory_of(std::byte* raw, const Args& args) {
  std::byte* base = raw + (1024 - shared_address(raw) % 1024) % 1024;
  const SharedPlan plan(args.x_slots);
  auto* barriers = reinterpret_cast<Mbarrier*>(base + plan.barriers);
  return {base,
          {base, barriers, barriers + kStages},
          base + plan.x,
          reinterpret_cast<float*>(base + plan.x_scales),
          barriers + 2 * kStages};
}
__device__ __forceinline__ void make_barriers(const Memory& memory) {
#pragma unroll 1
  for (int slot = 0; slot < kStages; ++slot) {
    mbarrier_init(&memory.ring.full[slot], 1);
    mbarrier_init(&memory.ring.empty[slot], 4);
  }
  mbarrier_init(memory.x_full, 1);
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

// All blocks are through with what they do before; what they wrote is seen. All consumers.
__device__ __forceinline__ void meet_blocks(int* arrived) {
  __threadfence();
  named_barrier_sync(kConsumerBarrier, kConsumers);
  if (threadIdx.x == 0) {
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(arrived) : "memory");
    constexpr long long kDeadlineCycles = 20'000'000'000LL;
    const long long begin = clock64();
    for (int count = 0; count < static_cast<int>(gridDim.x);) {
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(count) : "l"(arrived) : "memory");
      if (clock64() - begin > kDeadlineCycles) __trap();
    }
  }
  named_barrier_sync(kConsumerBarrier, kConsumers);
}

// silu(gate) ⊙ up of the block's experts' rows, from the sums of all splits, into x. All consumers, whole
// warps.
template <WeightType kType, int kValues>
__device__ __forceinline__ void activate_rows(const Args& args, const Routing<kValues>& routing,
                                              int first_place, int places, const Memory& memory) {
  using T = Row16<kType>;
  constexpr bool kFp8 = is_fp8_type<kType>;
  const int intermediate = args.sums_n / 2;
  const int quads = intermediate / 4;
  const int all_rows = static_cast<int>(args.route.m) * (args.route.top_k + args.route.num_shared);
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
    float4 gates[kMaxSplits];
    float4 ups[kMaxSplits];
#pragma unroll
    for (int s = 0; s < kMaxSplits; ++s) {
      if (s >= args.splits) continue;
      const float* split = from + static_cast<int64_t>(s) * all_rows * args.sums_n;
      gates[s] = __ldcg(reinterpret_cast<const float4*>(split));
      ups[s] = __ldcg(reinterpret_cast<const float4*>(split + intermediate));
    }
    float4 gate = gates[0];
    float4 up = ups[0];
#pragma unroll
    for (int s = 1; s < kMaxSplits; ++s) {
      if (s >= args.splits) continue;
      gate.x += gates[s].x, gate.y += gates[s].y, gate.z += gates[s].z, gate.w += gates[s].w;
      up.x += ups[s].x, up.y += ups[s].y, up.z += ups[s].z, up.w += ups[s].w;
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
    std::byte* to = memory.x + slot * kXSlotBytes + i * kSlotK + ((chunk ^ i) << 4) + byte % 16;
    if constexpr (kFp8) {
      const float scale = group_scale(lanes_max(abs_max8(y)), args.power_of_two != 0);
      *reinterpret_cast<uint32_t*>(to) = codes8(y, scale, false).x;
      if (threadIdx.x % 32 == 0) memory.x_scales[slot * kTokens + i] = scale;
    } else {
      *reinterpret_cast<uint2*>(to) = {pack_two<T>(y.v[0], y.v[1]), pack_two<T>(y.v[2], y.v[3])};
    }
  }
}

template <WeightType kType, int kValues>
__global__ void __launch_bounds__(kThreads, 1)
    few_experts_kernel(const __grid_constant__ CUtensorMap gate_up_map,
                       const __grid_constant__ CUtensorMap down_map,
                       const __grid_constant__ CUtensorMap x_map, const __grid_constant__ Args args) {
  constexpr bool kFp8 = is_fp8_type<kType>;
  extern __shared__ std::byte shared_raw[];
  __shared__ Routing<kValues> routing;
  Memory memory = memory_of(shared_raw, args);
  Ring& ring = memory.ring;
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
  load_bias(args.route, bias);
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
  route_few(args.route, args.parts, bias, routing, this_block == blocks - 1);
  const int total = group < groups ? routing.num_active * gate_up_tiles : 0;
  const int begin = this_block * routing.num_active * down_tiles / blocks;
  const int end = (this_block + 1) * routing.num_active * down_tiles / blocks;

  if (threadIdx.x >= kConsumers) {
    if (produces) {
#pragma unroll 1
      while (tile < total) {
        const int expert = routing.order[place_of(args.gate_up, tile)];
        const int row0 = row_of(args.gate_up, tile);
#pragma unroll 1
        for (; block < num_blocks; ++block) {
          mbarrier_wait(&ring.empty[ring.slot], ring.parity ^ 1);
          load_weights<kType>(&gate_up_map, ring, expert, row0, block0 + block);
          ring.advance();
        }
        block = 0;
        tile += groups;
      }
#pragma unroll 1
      for (int t = begin; t < end; ++t) {
        const int expert = routing.order[place_of(args.down, t)];
        const int row0 = row_of(args.down, t);
#pragma unroll 1
        for (int b = 0; b < args.down.num_blocks; ++b) {
          mbarrier_wait(&ring.empty[ring.slot], ring.parity ^ 1);
          load_weights<kType>(&down_map, ring, expert, row0, b);
          ring.advance();
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
  const int count = gate_up_count + end - begin;  // tiles of the block
  int index = own;                                // of the next one of this warpgroup
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
      to[0] = acc[c];
      to[8] = acc[2 + c];
    }
  }

  const auto down_scale = [&](int i) {
    const int t = begin + i - gate_up_count;
    if (!kFp8 || i >= count) return 0.0F;
    return scale_of_block(args.down, routing.order[place_of(args.down, t)], row_of(args.down, t), 0,
                          args.down.num_blocks);
  };
  w_scale = down_scale(index);
  meet_blocks(args.arrived);
  const int first_place = place_of(args.down, begin);
  if (begin < end) {
    const int places = place_of(args.down, end - 1) - first_place + 1;
    activate_rows<kType>(args, routing, first_place, places, memory);
  }
  fence_proxy_async_shared();  // the tensor cores read x
  named_barrier_sync(kConsumerBarrier, kConsumers);
#pragma unroll 1
  for (; index < count; index += kGroups) {
    const int t = begin + index - gate_up_count;
    const int place = place_of(args.down, t);
    const int expert = routing.order[place];
    const int x_slot = (place - first_place) * args.down.num_blocks;
    const float next_scale = down_scale(index + kGroups);
    float acc[4];
    take_turn();
    consume<kType>(ring, args.down.num_blocks, memory.x + x_slot * kXSlotBytes,
                   memory.x_scales + x_slot * kTokens, w_scale, acc, seen);
    pass(index + 1, index + kGroups);
    w_scale = next_scale;
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
  }
}

template <WeightType kType, int kValues>
void launch_few(const FewExpertsParams& p, const float* parts, float* sums, int* arrived,
                const Launch& launch) {
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
  args.arrived = arrived;
  args.sums_n = static_cast<int>(p.gate_up.n);
  args.splits = splits_of(p);
  args.gate_up = product(p.gate_up, p.gate_up_scale_stride);
  args.down = product(p.down, p.down_scale_stride);
  const int split_slots = (args.gate_up.num_blocks + args.splits - 1) / args.splits;
  const int down_slots = 2 * args.down.num_blocks;
  args.x_slots = split_slots > down_slots ? split_slots : down_slots;
  args.x_scales = p.x_fp8.scales;
  args.x_scale_stride = p.x_fp8.scale_stride;
  args.y = p.y;
  args.y_stride = static_cast<int>(p.down.n);
  args.power_of_two = p.x_fp8.power_of_two ? 1 : 0;
  const void* x = is_fp8_type<kType> ? p.x_fp8.codes : p.x;
  const CUtensorMap x_map =
      make_tensor_map<2, Element>(static_cast<const Element*>(x), {p.gate_up.k, p.route.m},
                                  {is_fp8_type<kType> ? p.x_fp8.stride : p.x_stride}, {kElements, kTokens});
  const int shared = SharedPlan(args.x_slots).bytes + 1024;
  launch_kernel<few_experts_kernel<kType, kValues>>(
      launch, dim3(static_cast<unsigned>(launch.num_sms)), dim3(kThreads),
      static_cast<size_t>(shared > kLeastShared ? shared : kLeastShared), map_of(p.gate_up, p.gate_up_stride),
      map_of(p.down, p.down_stride), x_map, args);
}

template <WeightType kType>
void launch_few_of(const FewExpertsParams& p, const float* parts, float* sums, int* arrived,
                   const Launch& launch) {
  if (p.route.num_experts <= 64) return launch_few<kType, 2>(p, parts, sums, arrived, launch);
  if (p.route.num_experts <= 160) return launch_few<kType, 5>(p, parts, sums, arrived, launch);
  launch_few<kType, 8>(p, parts, sums, arrived, launch);
}

}  // namespace hadal::cuda::few
