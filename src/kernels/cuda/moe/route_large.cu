// Routing of any number of tokens: three kernels, deterministic, no atomic whose order shows.
//
// 1. gate: a block of 16 warps takes a tile of 32 tokens, a warp two of them in turn; counts[expert][tile]
// from the
//    experts' bit masks over the tile.
// 2. sums: a warp an expert turns its counts into exclusive prefix sums over tiles, four tiles a lane at a
// time, and
//    leaves its total.
// 3. scatter: a block a tile sums the totals over experts for itself, rebuilds the tile's masks from the ids,
// and a
//    pair's row is offset[expert] + prefix[expert][tile] + rank in the tile. Block 0 stores the offsets.
// Scratch: [experts, tiles rounded up to 4] counts, then [experts] totals.
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/moe/route_gate.cuh"
#include "kernels/cuda/moe/route_kernels.h"
#include "kernels/cuda/moe/route_sort.cuh"

namespace hadal::cuda {
namespace {

constexpr int kGateThreads = 512;
constexpr int kGateWarps = kGateThreads / 32;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct Counts {
  int* of_tile;  // [experts, tile_stride]
  int* totals;   // [experts]
  int num_tiles, tile_stride;
};

template <int kValues>
__global__ void __launch_bounds__(kGateThreads) gate_kernel(const RouteParams p, const Counts counts) {
  __shared__ alignas(16) float scores[kGateWarps][32 * kValues];
  __shared__ uint32_t masks[kMaxExperts];
  const int lane = threadIdx.x % 32;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int num_slots = p.top_k + p.num_shared;
  const int experts = p.num_experts + p.num_shared;
  pdl_launch_dependents();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kGateThreads) masks[e] = 0;
  float bias[kValues] = {};
  if (p.kind == GateKind::kSigmoidNoAuxTc && p.bias != nullptr)
    load_lane_values(p.bias, p.num_experts, 0.0F, bias);
  pdl_wait();
  __syncthreads();
  const int64_t valid = p.valid != nullptr ? *p.valid : p.m;
  for (int i = warp; i < kRouteTile; i += kGateWarps) {
    const int64_t token = int64_t{blockIdx.x} * kRouteTile + i;
    if (token >= p.m) break;
    const float* logits = p.logits + (token < valid ? token : 0) * p.num_experts;
    const int id = with_shared(p, select_experts(p, logits, bias, scores[warp]));
    store_choice(p, token, id, weigh_experts(p, scores[warp], id));
    if (lane < num_slots) atomicOr(&masks[id], 1U << i);
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kGateThreads) {
    counts.of_tile[int64_t{e} * counts.tile_stride + blockIdx.x] = __popc(masks[e]);
  }
}

__global__ void __launch_bounds__(kThreads) sum_tiles_kernel(int experts, const Counts counts) {
  pdl_launch_dependents();
  pdl_wait();
  const int lane = threadIdx.x % 32;
  const int expert = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x / 32);
  if (expert >= experts) return;
  int* row = counts.of_tile + int64_t{expert} * counts.tile_stride;
  int carry = 0;
  for (int first = 0; first < counts.num_tiles; first += 128) {
    const int tile = first + 4 * lane;
    int4 n = {0, 0, 0, 0};
    if (tile < counts.num_tiles) n = *reinterpret_cast<const int4*>(row + tile);
    if (tile + 1 >= counts.num_tiles) n.y = 0;  // padding holds anything
    if (tile + 2 >= counts.num_tiles) n.z = 0;
    if (tile + 3 >= counts.num_tiles) n.w = 0;
    const int sum = n.x + n.y + n.z + n.w;
    int inclusive = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(kWarp, inclusive, step);
      if (lane >= step) inclusive += other;
    }
    const int begin = carry + inclusive - sum;
    if (tile < counts.num_tiles) {
      *reinterpret_cast<int4*>(row + tile) = {begin, begin + n.x, begin + n.x + n.y, begin + n.x + n.y + n.z};
    }
    carry += __shfl_sync(kWarp, inclusive, 31);
  }
  if (lane == 0) counts.totals[expert] = carry;
}

__global__ void __launch_bounds__(kThreads) scatter_kernel(const RouteParams p, const Counts counts) {
  __shared__ uint32_t masks[kMaxExperts];
  __shared__ int offsets[kMaxExperts + 1];
  __shared__ int distinct;
  const int num_slots = p.top_k + p.num_shared;
  const int experts = p.num_experts + p.num_shared;
  pdl_launch_dependents();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) masks[e] = 0;
  pdl_wait();
  __syncthreads();
  const int64_t first_token = int64_t{blockIdx.x} * kRouteTile;
  const int64_t tokens = min(static_cast<int64_t>(kRouteTile), p.m - first_token);
  const int pairs = static_cast<int>(tokens) * num_slots;
  const int32_t* ids = p.topk_ids + first_token * num_slots;
  for (int i = static_cast<int>(threadIdx.x); i < pairs; i += kThreads) {
    atomicOr(&masks[ids[i]], 1U << (i / num_slots));
  }
  // Its barriers also order the masks.
  scan_experts(
      experts, p.num_experts, [&](int e) { return counts.totals[e]; }, offsets, &distinct);
  if (blockIdx.x == 0) store_offsets(p, experts, offsets, distinct);
  for (int i = static_cast<int>(threadIdx.x); i < pairs; i += kThreads) {
    const int id = ids[i];
    const int token = i / num_slots;
    const int row = offsets[id] + counts.of_tile[int64_t{id} * counts.tile_stride + blockIdx.x] +
                    __popc(masks[id] & ((1U << token) - 1));
    p.row_of[first_token * num_slots + i] = row;
    p.token_of[row] = static_cast<int32_t>(first_token) + token;
  }
}

template <int kValues>
void launch_gate(const RouteParams& p, const Counts& counts, const Launch& launch) {
  launch_kernel<gate_kernel<kValues>>(launch, static_cast<unsigned>(counts.num_tiles), kGateThreads, 0, p,
                                      counts);
}

}  // namespace

void route_large(const RouteParams& p, const Launch& launch) {
  const int experts = p.num_experts + p.num_shared;
  Counts counts{};
  counts.num_tiles = static_cast<int>((p.m + kRouteTile - 1) / kRouteTile);
  counts.tile_stride = static_cast<int>(round_up(counts.num_tiles, 4));
  counts.of_tile = static_cast<int*>(p.scratch);
  counts.totals = counts.of_tile + int64_t{experts} * counts.tile_stride;
  if (p.num_experts <= 64) {
    launch_gate<2>(p, counts, launch);
  } else if (p.num_experts <= 160) {
    launch_gate<5>(p, counts, launch);
  } else if (p.num_experts <= 256) {
    launch_gate<8>(p, counts, launch);
  } else {
    launch_gate<16>(p, counts, launch);
  }
  launch_kernel<sum_tiles_kernel>(launch, static_cast<unsigned>((experts + kWarps - 1) / kWarps), kThreads, 0,
                                  experts, counts);
  launch_kernel<scatter_kernel>(launch, static_cast<unsigned>(counts.num_tiles), kThreads, 0, p, counts);
}

}  // namespace hadal::cuda
