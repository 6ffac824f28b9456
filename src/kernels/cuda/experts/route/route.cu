// Implements route(), which checks the arguments and launches the chosen kernel, and contains the plain
// kernels.
//
// The plain gate has one block of 32 threads for each token; the scores are in shared memory, and thread 0
// makes every choice in the order of indices. The plain sort has one block, in which one thread for each
// expert reads all pairs twice.
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/experts/route/gate.cuh"
#include "kernels/cuda/experts/route/kernels.h"
#include "kernels/cuda/experts/route/sort.cuh"

namespace hadal::cuda {
namespace reference {
namespace {

// Returns the index of the largest of `count` rank keys, or the lowest such index among equal keys. A key of
// 0 cannot be chosen.
__device__ int best_of(const uint32_t* keys, int count) {
  int best = 0;
  for (int i = 1; i < count; ++i) best = keys[i] > keys[best] ? i : best;
  return best;
}

// Shared memory holds scores, keys and kept keys of experts, and keys of groups: at most 4 · num_experts
// words.
__global__ void gate_kernel(const RouteParams p) {
  extern __shared__ float scores[];
  auto* keys = reinterpret_cast<uint32_t*>(scores + p.num_experts);
  uint32_t* kept = keys + p.num_experts;
  uint32_t* group_keys = kept + p.num_experts;
  pdl_wait();
  if (threadIdx.x != 0) return;
  const int64_t token = blockIdx.x;
  const int64_t source = p.valid == nullptr || token < *p.valid ? token : 0;
  const float* logits = p.logits + source * p.num_experts;
  const bool sigmoid = p.kind == GateKind::kSigmoidNoAuxTc;
  float peak = -INFINITY;
  for (int e = 0; e < p.num_experts; ++e) peak = fmaxf(peak, logits[e]);
  float sum = 0.0F;
  for (int e = 0; e < p.num_experts; ++e) {
    scores[e] = sigmoid ? 1.0F / (1.0F + expf(-logits[e])) : expf(logits[e] - peak);
    sum += scores[e];
  }
  for (int e = 0; e < p.num_experts; ++e) {
    if (!sigmoid) scores[e] /= sum;
    keys[e] = rank_key(scores[e] + (sigmoid && p.bias != nullptr ? p.bias[e] : 0.0F));
    kept[e] = keys[e];
  }
  if (p.kind != GateKind::kSoftmaxGreedy && p.num_groups > 1) {
    const int size = p.num_experts / p.num_groups;
    for (int g = 0; g < p.num_groups; ++g) {
      const int first = best_of(keys + g * size, size);
      float score = key_value(keys[g * size + first]);
      if (sigmoid && size > 1) {
        keys[g * size + first] = 0;
        score += key_value(keys[g * size + best_of(keys + g * size, size)]);
      }
      group_keys[g] = rank_key(score);
    }
    for (int e = 0; e < p.num_experts; ++e) keys[e] = 0;
    for (int i = 0; i < min(p.topk_groups, p.num_groups); ++i) {
      const int g = best_of(group_keys, p.num_groups);
      group_keys[g] = 0;
      for (int e = g * size; e < (g + 1) * size; ++e) keys[e] = kept[e];
    }
  }
  const int num_slots = p.top_k + p.num_shared;
  int32_t* ids = p.topk_ids + token * num_slots;
  float* weights = p.topk_weights + token * num_slots;
  float chosen_sum = 0.0F;
  for (int j = 0; j < p.top_k; ++j) {
    ids[j] = best_of(keys, p.num_experts);
    keys[ids[j]] = 0;
    chosen_sum += scores[ids[j]];
  }
  for (int j = 0; j < num_slots; ++j) {
    if (j >= p.top_k) {
      ids[j] = p.num_experts + j - p.top_k;
      weights[j] = 1.0F;
    } else {
      weights[j] =
          (p.renormalize ? scores[ids[j]] / (chosen_sum + 1e-20F) : scores[ids[j]]) * p.scaling_factor;
    }
  }
}

// Counts the pairs of each expert into expert_offsets[e + 1], adds the counts up in one thread, and then
// fills every expert's rows in order.
__global__ void __launch_bounds__(1024) sort_kernel(const RouteParams p) {
  pdl_wait();
  const int num_slots = p.top_k + p.num_shared;
  const int experts = p.num_experts + p.num_shared;
  const int64_t pairs = p.m * num_slots;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += static_cast<int>(blockDim.x)) {
    int count = 0;
    for (int64_t i = 0; i < pairs; ++i) count += p.topk_ids[i] == e ? 1 : 0;
    p.expert_offsets[e + 1] = count;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int distinct = 0;
    p.expert_offsets[0] = 0;
    for (int e = 0; e < experts; ++e) {
      distinct += e < p.num_experts && p.expert_offsets[e + 1] > 0 ? 1 : 0;
      p.expert_offsets[e + 1] = p.expert_offsets[e] + (is_held(p, e) ? p.expert_offsets[e + 1] : 0);
    }
    if (p.num_distinct != nullptr) *p.num_distinct = distinct;
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += static_cast<int>(blockDim.x)) {
    int row = p.expert_offsets[e];
    for (int64_t i = 0; i < pairs; ++i) {
      if (p.topk_ids[i] != e) continue;
      p.row_of[i] = is_held(p, e) ? row : -1;
      if (!is_held(p, e)) continue;
      p.token_of[row++] = static_cast<int32_t>(i / num_slots);
    }
  }
}

}  // namespace

void route(const RouteParams& p, const Launch& launch) {
  const size_t shared_bytes =
      (3 * static_cast<size_t>(p.num_experts) + static_cast<size_t>(p.num_groups)) * sizeof(float);
  launch_kernel<gate_kernel>(launch, static_cast<unsigned>(p.m), 32, shared_bytes, p);
  if (p.m > 0) launch_kernel<sort_kernel>(launch, 1, 1024, 0, p);
}

}  // namespace reference

ExpertsShape route_shape(const RouteParams& p, int num_sms) {
  return {.tokens = p.m,
          .num_experts = p.num_experts,
          .num_shared = p.num_shared,
          .top_k = p.top_k,
          .num_held = p.num_held,
          .num_groups = p.num_groups,
          .topk_groups = p.topk_groups,
          .gate_kind = p.kind,
          .num_sms = num_sms};
}

void check_route(const RouteParams& p) {
  HADAL_CHECK(p.top_k >= 1 && p.top_k <= p.num_experts && p.num_shared >= 0,
              "top_k {} is not possible with {} experts", p.top_k, p.num_experts);
  HADAL_CHECK(p.num_groups >= 1 && p.num_experts % p.num_groups == 0,
              "{} experts cannot be divided into {} groups", p.num_experts, p.num_groups);
  HADAL_CHECK(p.num_held == 0 || (p.first_held >= 0 && p.num_held > 0 &&
                                  p.first_held + p.num_held <= p.num_experts && p.num_shared == 0),
              "experts [{}, {}) of {} are held, with {} shared ones", p.first_held, p.first_held + p.num_held,
              p.num_experts, p.num_shared);
  if (p.kind != GateKind::kSoftmaxGreedy && p.num_groups > 1) {
    HADAL_CHECK(p.topk_groups >= 1 && p.top_k <= p.num_experts / p.num_groups * p.topk_groups,
                "top_k {} is not possible with {} groups of {}", p.top_k, p.topk_groups,
                p.num_experts / p.num_groups);
  }
}

void route(const RouteParams& p, const Launch& launch) {
  route(p, launch.reference ? RouteKernel::kPlain : choose_route(route_shape(p, launch.num_sms)), launch);
}

void route(const RouteParams& p, RouteKernel kernel, const Launch& launch) {
  check_route(p);
  if (p.m == 0) return;
  HADAL_CHECK(supports(kernel, route_shape(p, launch.num_sms)),
              "the {} routing kernel does not support {} tokens of {} experts", to_string(kernel), p.m,
              p.num_experts);
  switch (kernel) {
    case RouteKernel::kPlain:
      return reference::route(p, launch);
    case RouteKernel::kSmall:
      return route_small(p, launch);
    case RouteKernel::kLarge:
      return route_large(p, launch);
  }
}

}  // namespace hadal::cuda
