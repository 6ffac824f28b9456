// Routes up to 128 tokens in one kernel: gate, top-k, and the stable sort by expert.
//
// Grid: it is one block (up to 8 or 16 tokens), or one cluster of 8 blocks. Each warp gates one token, so
// that no warp waits for another's choice, and ORs the token's bit into the masks of the chosen experts in
// the shared memory of every block of the cluster. After one barrier each block has all masks, computes the
// offsets by itself and scatters the pairs of its own tokens; block 0 stores the offsets. The weights are
// computed where they delay no barrier. The first phase of the cluster's barrier ends when every block has
// cleared its masks (blocks arrive before pdl_wait and wait after the choice), the second when all bits are
// set. No block accesses another's memory after that, so blocks may end at any time. Shared memory holds
// the scores of each warp's token, the masks (4 words per expert) and the offsets, at most 44 KB. The gate's
// bias is loaded before pdl_wait. A single token has a kernel of its own: warp 0 chooses, then every thread
// counts the chosen ids below its expert.
#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/experts/route/gate.cuh"
#include "kernels/cuda/experts/route/kernels.h"
#include "kernels/cuda/experts/route/sort.cuh"

namespace hadal::cuda {
namespace {

constexpr int kClusterBlocks = 8;

template <int kValues, int kBlocks>
__device__ __forceinline__ void route_tokens(const RouteParams& p) {
  constexpr int kWarps = 16;
  constexpr int kWords = kBlocks > 1 ? static_cast<int>(kMaxSmallRoute / 32) : 1;
  __shared__ alignas(16) float scores[kWarps][32 * kValues];
  __shared__ uint32_t masks[kMaxSortedExperts * kWords];
  __shared__ int offsets[kMaxSortedExperts + 1];
  __shared__ int distinct;

  const int lane = threadIdx.x % 32;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int block = static_cast<int>(blockIdx.x);
  const int token = warp * kBlocks + block;  // few tokens spread over the blocks
  const int num_slots = p.top_k + p.num_shared;
  const int experts = p.num_experts + p.num_shared;

  pdl_launch_dependents();
  for (int i = static_cast<int>(threadIdx.x); i < experts * kWords; i += static_cast<int>(blockDim.x))
    masks[i] = 0;
  if (kBlocks > 1) cluster_arrive();
  float bias[kValues] = {};
  if (p.kind == GateKind::kSigmoidNoAuxTc && p.bias != nullptr)
    load_lane_values(p.bias, p.num_experts, 0.0F, bias);
  pdl_wait();

  int id = 0;
  const bool mine = token < p.m;
  if (mine) {
    const int valid = p.valid != nullptr ? *p.valid : static_cast<int>(p.m);
    const int64_t source = token < valid ? token : 0;
    id = with_shared(p, select_experts(p, p.logits + source * p.num_experts, bias, scores[warp]));
  }
  if (kBlocks > 1) {
    cluster_wait();  // all masks are clear
  } else {
    __syncthreads();
  }

  const uint32_t bit = 1U << (token % 32);
  const int word = token / 32;
  if constexpr (kBlocks > 1) {
    for (int i = lane; mine && i < ((num_slots * kBlocks + 31) & ~31); i += 32) {
      const int slot = i / kBlocks;
      const int expert = __shfl_sync(kWarp, id, slot % 32);
      if (slot < num_slots)
        cluster_or(&masks[expert * kWords + word], bit, static_cast<uint32_t>(i % kBlocks));
    }
    cluster_arrive();
    if (mine) store_choice(p, token, id, weigh_experts(p, scores[warp], id));
    cluster_wait();
  } else {
    if (mine && lane < num_slots) atomicOr(&masks[id], bit);
    __syncthreads();
  }

  const auto count = [&](int e) {
    int n = 0;
#pragma unroll
    for (int w = 0; w < kWords; ++w) n += __popc(masks[e * kWords + w]);
    return n;
  };
  scan_experts(p, count, offsets, &distinct);
  if (block == 0) store_offsets(p, experts, offsets, distinct);
  if (!mine) return;
  if (kBlocks == 1) store_choice(p, token, id, weigh_experts(p, scores[warp], id));
  if (lane >= num_slots) return;
  int32_t* const row_of = p.row_of + int64_t{token} * num_slots + lane;
  if (!is_held(p, id)) {
    *row_of = -1;
    return;
  }
  int row = offsets[id] + __popc(masks[id * kWords + word] & (bit - 1));
#pragma unroll
  for (int w = 0; w < kWords; ++w) row += w < word ? __popc(masks[id * kWords + w]) : 0;
  *row_of = row;
  p.token_of[row] = token;
}

template <int kValues>
__global__ void __launch_bounds__(256) route_one_kernel(const RouteParams p) {
  __shared__ alignas(16) float scores[32 * kValues];
  __shared__ alignas(16) int4 chosen[8];
  const int thread = static_cast<int>(threadIdx.x);
  const int num_slots = p.top_k + p.num_shared;
  const int experts = p.num_experts + p.num_shared;
  pdl_launch_dependents();
  float bias[kValues] = {};
  if (thread < 32 && p.kind == GateKind::kSigmoidNoAuxTc && p.bias != nullptr) {
    load_lane_values(p.bias, p.num_experts, 0.0F, bias);
  }
  pdl_wait();
  int id = 0;
  if (thread < 32) {
    id = with_shared(p, select_experts(p, p.logits, bias, scores));
    reinterpret_cast<int*>(chosen)[thread] = thread < num_slots && is_held(p, id) ? id : experts + 1;
  }
  __syncthreads();
  const auto chosen_below = [&](int expert) {
    int count = 0;
#pragma unroll 1
    for (int i = 0; i < num_slots; i += 4) {
      const int4 ids = chosen[i / 4];
      count += (ids.x < expert ? 1 : 0) + (ids.y < expert ? 1 : 0) + (ids.z < expert ? 1 : 0) +
               (ids.w < expert ? 1 : 0);
    }
    return count;
  };
  if (thread >= 32) {
#pragma unroll 1
    for (int e = thread - 32; e <= experts; e += 224) p.expert_offsets[e] = chosen_below(e);
    return;
  }
  if (thread < num_slots) {
    const int row = is_held(p, id) ? chosen_below(id) : -1;
    p.row_of[thread] = row;
    if (row >= 0) p.token_of[row] = 0;
  }
  if (thread == 0 && p.num_distinct != nullptr) *p.num_distinct = p.top_k;
  store_choice(p, 0, id, weigh_experts(p, scores, id));
}
template <int kValues>
__global__ void __launch_bounds__(512) route_block_kernel(const RouteParams p) {
  route_tokens<kValues, 1>(p);
}
template <int kValues>
__global__ void __launch_bounds__(512) __cluster_dims__(kClusterBlocks, 1, 1)
    route_cluster_kernel(const RouteParams p) {
  route_tokens<kValues, kClusterBlocks>(p);
}

template <int kValues>
void launch_small(const RouteParams& p, const Launch& launch) {
  if (p.m == 1) return launch_kernel<route_one_kernel<kValues>>(launch, 1, 256, 0, p);
  // A choice among many experts needs so many instructions that one multiprocessor is too slow for 16 tokens.
  if (p.m <= (kValues <= 2 ? 16 : 8)) {
    return launch_kernel<route_block_kernel<kValues>>(launch, 1, p.m <= 8 ? 256 : 512, 0, p);
  }
  launch_kernel<route_cluster_kernel<kValues>>(launch, kClusterBlocks, p.m <= 64 ? 256 : 512, 0, p);
}

}  // namespace

void route_small(const RouteParams& p, const Launch& launch) {
  dispatch_lane_values(p.num_experts, [&]<int kValues>() { launch_small<kValues>(p, launch); });
}

}  // namespace hadal::cuda
