// Computes the gate of one token in one warp: scores, groups, the best top_k and their weights
// (kernels/params/moe.h).
//
// Lane l holds experts [l · kValues, (l + 1) · kValues), so that a group of experts is a run of lanes. Scores
// become keys whose order as integers is the order of the floats. NaN counts as −infinity, and key 0 marks an
// expert that cannot be chosen. A pick is one integer maximum over the warp (redux), and the lowest lane that
// holds it has the lowest index.
#pragma once

#include <cstdint>

#include "kernels/cuda/experts/experts.h"

namespace hadal::cuda {

inline constexpr unsigned kWarp = 0xffffffffU;

__device__ __forceinline__ float rank_value(float v) {
  return v == v ? v : -INFINITY;
}
// Returns the key of a value that is neither NaN nor −0.
__device__ __forceinline__ uint32_t order_key(float v) {
  const int32_t bits = __float_as_int(v);
  return static_cast<uint32_t>(bits ^ (bits >> 31 | static_cast<int32_t>(0x80000000U)));
}
__device__ __forceinline__ uint32_t rank_key(float v) {
  return order_key(rank_value(v) + 0.0F);  // −0 ranks as 0
}
__device__ __forceinline__ float key_value(uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key ^ 0x80000000U : ~key);
}

// Returns 1 / d for 2^−100 < d < 2^126, nearly always correctly rounded. It has no branch to division's slow
// path, which would keep a lane's reciprocals from overlapping. NaN stays NaN.
__device__ __forceinline__ float reciprocal(float d) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
  return fmaf(fmaf(-d, r, 1.0F), r, r);
}

// Loads the values of this lane; experts from `count` on get `fill`.
template <int kValues>
__device__ __forceinline__ void load_lane_values(const float* p, int count, float fill,
                                                 float (&out)[kValues]) {
  const int first = static_cast<int>(threadIdx.x % 32) * kValues;
  if (kValues % 2 == 0 && count == 32 * kValues) {
#pragma unroll
    for (int i = 0; i + 1 < kValues; i += 2) {
      const float2 pair = *reinterpret_cast<const float2*>(p + first + i);
      out[i] = pair.x;
      out[i + 1] = pair.y;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kValues; ++i) out[i] = first + i < count ? p[first + i] : fill;
}

// Chooses the best experts of one token; lane j < top_k returns the j-th id. `bias` comes from
// load_lane_values (0 without a bias); `scores`, 32 · kValues floats of shared memory of this warp, receives
// the scores for weigh_experts.
template <int kValues>
__device__ __forceinline__ int select_experts(const RouteParams& p, const float* logits,
                                              const float (&bias)[kValues], float* scores) {
  const int lane = threadIdx.x % 32;
  float score[kValues];
  load_lane_values(logits, p.num_experts, -INFINITY, score);
  if (p.kind == GateKind::kSigmoidNoAuxTc) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const float d = 1.0F + expf(-score[i]);
      score[i] = d > 0x1p126F ? 0.0F : reciprocal(d);
    }
  } else {
    float peak = score[0];
#pragma unroll
    for (int i = 1; i < kValues; ++i) peak = fmaxf(peak, score[i]);  // ignores NaN
    peak = key_value(__reduce_max_sync(kWarp, rank_key(peak)));
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      score[i] = lane * kValues + i < p.num_experts ? expf(score[i] - peak) : 0.0F;
      sum += score[i];
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kWarp, sum, step);
    const float r = reciprocal(sum);
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      const float near = score[i] * r;
      score[i] = fmaf(fmaf(-near, sum, score[i]), r, near);
    }
  }

  float selection[kValues];  // never −0: scores are not negative
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    if (kValues % 4 != 0) scores[lane * kValues + i] = score[i];
    if (kValues % 4 == 0 && i % 4 == 0) {
      *reinterpret_cast<float4*>(scores + lane * kValues + i) = {
          score[i], score[(i + 1) % kValues], score[(i + 2) % kValues], score[(i + 3) % kValues]};
    }
    selection[i] = rank_value(score[i] + bias[i]);
  }

  bool kept = true;  // this lane's group is kept
  if (p.kind != GateKind::kSoftmaxGreedy && p.num_groups > 1) {
    // `best` and `second` become the two best values of the lane's group; `second` is −infinity if the group
    // has one expert.
    const int shift = __clz(p.num_groups) - 26;  // a group's lanes are 1 << shift: num_groups divides 32
    float best = selection[0];
    float second = -INFINITY;
#pragma unroll
    for (int i = 1; i < kValues; ++i) {
      second = fmaxf(second, fminf(best, selection[i]));
      best = fmaxf(best, selection[i]);
    }
#pragma unroll 1
    for (int step = 0; step < shift; ++step) {
      const float other_best = __shfl_xor_sync(kWarp, best, 1 << step);
      const float other_second = __shfl_xor_sync(kWarp, second, 1 << step);
      second = fmaxf(fminf(best, other_best), fmaxf(second, other_second));
      best = fmaxf(best, other_best);
    }
    const bool pairs = p.kind == GateKind::kSigmoidNoAuxTc && p.num_experts > p.num_groups;
    const uint32_t group_key = rank_key(pairs ? best + second : best);
    const int group = lane >> shift;
    int better = 0;  // counts the groups that precede; among equal ones the lower precedes
#pragma unroll 1
    for (int first = 0; first < p.num_groups; first += 8) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int g = first + i;
        const uint32_t other = __shfl_sync(kWarp, group_key, g << shift);  // wraps past the last group
        better += g < p.num_groups && other + (g < group ? 1U : 0U) > group_key ? 1 : 0;
      }
    }
    kept = better < p.topk_groups;
  }
  uint32_t key[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    key[i] = kept && lane * kValues + i < p.num_experts ? order_key(selection[i]) : 0;
  }

  // Each lane sorts its own experts, best first, so that a pick waits only for a maximum, a vote and a shift.
  // Neighbours are swapped only when out of order, so equal keys keep the order of their indices.
  int expert[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) expert[i] = lane * kValues + i;
#pragma unroll
  for (int round = 0; round < kValues; ++round) {
#pragma unroll
    for (int i = round % 2; i + 1 < kValues; i += 2) {
      const bool swap = key[i] < key[i + 1];
      const uint32_t better_key = swap ? key[i + 1] : key[i];
      const int better_expert = swap ? expert[i + 1] : expert[i];
      key[i + 1] = swap ? key[i] : key[i + 1];
      expert[i + 1] = swap ? expert[i] : expert[i + 1];
      key[i] = better_key;
      expert[i] = better_expert;
    }
  }
  const unsigned below = (1U << lane) - 1;
  int id = 0;
#pragma unroll 1
  for (int j = 0; j < p.top_k; ++j) {
    const uint32_t top = __reduce_max_sync(kWarp, key[0]);
    const unsigned holders = __ballot_sync(kWarp, key[0] == top);
    const int chosen = __shfl_sync(kWarp, expert[0], __ffs(static_cast<int>(holders)) - 1);
    if (lane == j) id = chosen;
    if (key[0] == top && (holders & below) == 0) {
#pragma unroll
      for (int i = 0; i + 1 < kValues; ++i) {
        key[i] = key[i + 1];
        expert[i] = expert[i + 1];
      }
      key[kValues - 1] = 0;
    }
  }
  __syncwarp();  // makes the scores visible to every lane
  return id;
}

// Lane j < top_k returns the weight of its expert.
__device__ __forceinline__ float weigh_experts(const RouteParams& p, const float* scores, int id) {
  const int lane = threadIdx.x % 32;
  const float mine = lane < p.top_k ? scores[id] : 0.0F;
  float sum = mine;
  for (int step = p.top_k <= 8 ? 4 : 16; step > 0; step /= 2) sum += __shfl_xor_sync(kWarp, sum, step);
  __syncwarp();  // all lanes have read the scores before those of the next token overwrite them
  const float all = sum + 1e-20F;
  const float r = reciprocal(all);
  const float share = fmaf(fmaf(-(mine * r), all, mine), r, mine * r);
  return (p.renormalize ? share : mine) * p.scaling_factor;
}

// Returns the expert of slot `lane`, given the routed ones; the shared experts follow them.
__device__ __forceinline__ int with_shared(const RouteParams& p, int id) {
  const int lane = threadIdx.x % 32;
  return lane < p.top_k ? id : p.num_experts + lane - p.top_k;
}

// Lane j < num_slots stores its slot's expert and weight, 1 for the shared ones.
__device__ __forceinline__ void store_choice(const RouteParams& p, int64_t token, int id, float weight) {
  const int lane = threadIdx.x % 32;
  const int num_slots = p.top_k + p.num_shared;
  if (lane >= num_slots) return;
  p.topk_ids[token * num_slots + lane] = id;
  p.topk_weights[token * num_slots + lane] = lane < p.top_k ? weight : 1.0F;
}

}  // namespace hadal::cuda
