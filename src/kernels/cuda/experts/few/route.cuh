// Chooses the experts from the router's parts. Every block of experts/few/kernel.cuh does this by itself,
// with all of its threads; the last block stores the routing for the next norm.
#pragma once

#include "kernels/cuda/experts/few/few_experts.h"
#include "kernels/cuda/experts/route/gate.cuh"

namespace hadal::cuda::few {

constexpr int kTokens = static_cast<int>(kMaxFewTokens);
constexpr int kGroups = 2;  // consumer warpgroups
constexpr int kConsumers = kGroups * 128;
constexpr int kThreads = kConsumers + 32;
constexpr int kWarps = kThreads / 32;
static_assert(kMaxAllExperts == kThreads);  // one thread for each expert

// Holds the experts that each token chose; it lies in shared memory.
template <int kValues>
struct Routing {
  alignas(16) float scores[kTokens][32 * kValues];
  uint32_t masks[kMaxAllExperts];  // bit t: token t chose the expert
  int offsets[kMaxAllExperts];     // first row
  uint16_t order[kMaxAllExperts];  // the experts that have rows, the shared ones first
  int totals[kWarps];
  int num_active;  // experts in `order`
};

// Chooses the experts of all tokens. All threads call it, after a barrier that follows the clearing of the
// masks, and it ends with a barrier. If `writes`, it also stores the routing for the kernels that follow.
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
  const bool chosen = expert < experts && r.masks[expert] != 0;
  const uint32_t mask = chosen && is_held(p, expert) ? r.masks[expert] : 0;
  const int own = __popc(mask) | (mask != 0 ? 1 << 16 : 0);  // low half: rows; high half: experts
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
    if (expert == experts - 1) r.num_active = (first + own) >> 16;
    if (writes) {
      p.expert_offsets[expert] = row;
      if (expert == experts - 1) p.expert_offsets[experts] = row + (own & 0xffff);
    }
  }
  const int num_chosen = __syncthreads_count(chosen ? 1 : 0);
  if (!writes) return;
  if (threadIdx.x == 0 && p.num_distinct != nullptr) *p.num_distinct = num_chosen - p.num_shared;
  if (!mine) return;
  store_choice(p, warp, id, weigh_experts(p, r.scores[warp], id));
  if (lane >= num_slots) return;
  const bool held = is_held(p, id);
  const int place = held ? r.offsets[id] + __popc(r.masks[id] & ((1U << warp) - 1)) : -1;
  p.row_of[warp * num_slots + lane] = place;
  if (held) p.token_of[place] = warp;
}

// Holds the shared memory of route_one, which chooses the experts of one token if groups have 32 experts:
// each warp has a group and each lane an expert. Experts are ranked instead of being picked one by one, so
// that no pick waits for another. First each expert is ranked within its group; then the eight best of every
// group are ranked against each other.
struct OneToken {
  alignas(16) uint32_t all[8][32];  // keys
  alignas(16) uint32_t keys[8][8];  // keys of a group's best experts, best first
  uint8_t lanes[8][8];              // the lanes of these experts
  alignas(16) int chosen[8];
};
__device__ __forceinline__ bool routes_one(const RouteParams& p) {
  return p.m == 1 && p.kind == GateKind::kSigmoidNoAuxTc && p.num_groups == 8 && p.num_experts == 256 &&
         p.top_k <= 8;
}
template <int kValues>
__device__ __forceinline__ void route_one(const RouteParams& p, const float* parts, float bias, OneToken& one,
                                          Routing<kValues>& r, bool writes) {
  const int lane = threadIdx.x % 32;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int expert = static_cast<int>(threadIdx.x);
  const int experts = p.num_experts + p.num_shared;
  if (warp < 8) {
    float part[kRouterSplits];
#pragma unroll
    for (int s = 0; s < kRouterSplits; ++s) part[s] = __ldcg(parts + s * p.num_experts + expert);
    float logit = part[0];
#pragma unroll
    for (int s = 1; s < kRouterSplits; ++s) logit += part[s];
    const float d = 1.0F + expf(-logit);
    const float score = d > 0x1p126F ? 0.0F : reciprocal(d);
    r.scores[0][expert] = score;
    const uint32_t key = order_key(rank_value(score + bias));
    one.all[warp][lane] = key;
    // Among equal keys, the one in the lower lane precedes.
    int rank = __popc(__match_any_sync(kWarp, key) & ((1U << lane) - 1));
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint4 four = *reinterpret_cast<const uint4*>(one.all[warp] + 4 * i);
      rank +=
          (four.x > key ? 1 : 0) + (four.y > key ? 1 : 0) + (four.z > key ? 1 : 0) + (four.w > key ? 1 : 0);
    }
    if (rank < 8) {
      one.keys[warp][rank] = key;
      one.lanes[warp][rank] = static_cast<uint8_t>(lane);
    }
  }
  __syncthreads();
  if (warp < 8) {
    // Each lane ranks one group. Then a lane compares candidate j of its warp's group with the candidates of
    // two groups.
    const uint2 pair = *reinterpret_cast<const uint2*>(one.keys[lane % 8]);
    const uint32_t group_key = rank_key(key_value(pair.x) + key_value(pair.y));
    int better = __popc(__match_any_sync(kWarp, group_key) & ((1U << lane % 8) - 1));
#pragma unroll
    for (int g = 0; g < 8; ++g) better += __shfl_sync(kWarp, group_key, g) > group_key ? 1 : 0;
    const unsigned kept = __ballot_sync(kWarp, better < p.topk_groups);
    const int j = lane / 4;
    const uint32_t key = one.keys[warp][j];
    int rank = lane % 4 == 0 ? j : 0;  // counts the candidates of its own group that precede
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int g = lane % 4 * 2 + i;
      if ((kept >> g & 1U) == 0 || g == warp) continue;
      const uint32_t least = key - (g < warp ? 1 : 0);  // among equal keys, that of the lower group precedes
      const uint4 first = *reinterpret_cast<const uint4*>(one.keys[g]);
      const uint4 last = *reinterpret_cast<const uint4*>(one.keys[g] + 4);
      rank += (first.x > least ? 1 : 0) + (first.y > least ? 1 : 0) + (first.z > least ? 1 : 0) +
              (first.w > least ? 1 : 0) + (last.x > least ? 1 : 0) + (last.y > least ? 1 : 0) +
              (last.z > least ? 1 : 0) + (last.w > least ? 1 : 0);
    }
    rank += __shfl_xor_sync(kWarp, rank, 1);
    rank += __shfl_xor_sync(kWarp, rank, 2);
    if (lane % 4 == 0 && rank < p.top_k && (kept >> warp & 1U) != 0)
      one.chosen[rank] = warp * 32 + one.lanes[warp][j];
  }
  __syncthreads();
  const int num_slots = p.top_k + p.num_shared;
  const int4 low = *reinterpret_cast<const int4*>(one.chosen);
  const int4 high = *reinterpret_cast<const int4*>(one.chosen + 4);
  const int chosen[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  const auto below = [&](int id) {  // counts the chosen experts below `id` that are held
    int count = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) count += j < p.top_k && chosen[j] < id && is_held(p, chosen[j]) ? 1 : 0;
    return count;
  };
  int id = 0;
  int place = 0;
  bool held = false;  // this lane's slot has a row
  if (warp == 0) {
    id = lane < p.top_k ? one.chosen[lane] : p.num_experts + lane - p.top_k;
    held = lane < num_slots && is_held(p, id);
    place = lane < p.top_k ? below(id) : lane;
    if (held) {
      r.order[lane < p.top_k ? place + p.num_shared : lane - p.top_k] = static_cast<uint16_t>(id);
      r.offsets[id] = place;
      r.masks[id] = 1;
    }
    const unsigned all_held = __ballot_sync(kWarp, held);
    if (lane == 0) r.num_active = __popc(all_held);
  }
  __syncthreads();
  if (!writes) return;
  for (int e = expert; e <= experts; e += kThreads)
    p.expert_offsets[e] = below(e) + max(e - p.num_experts, 0);
  if (warp != 0) return;
  if (lane == 0 && p.num_distinct != nullptr) *p.num_distinct = p.top_k;
  store_choice(p, 0, id, weigh_experts(p, r.scores[0], id));
  if (lane >= num_slots) return;
  p.row_of[lane] = held ? place : -1;
  if (held) p.token_of[place] = 0;
}

template <int kValues>
__device__ __forceinline__ void load_bias(const RouteParams& p, float (&bias)[kValues]) {
#pragma unroll
  for (int i = 0; i < kValues; ++i) bias[i] = 0.0F;
  if (p.kind == GateKind::kSigmoidNoAuxTc && p.bias != nullptr)
    load_lane_values(p.bias, p.num_experts, 0.0F, bias);
}

}  // namespace hadal::cuda::few
