// Loads a row from memory, applies penalties, bias, the grammar's mask and the mask of end tokens to it, and
// finds the best token.
#pragma once

#include <climits>

#include "kernels/cuda/sampling/row.cuh"

namespace hadal::cuda::sampling {

// Describes the changes to a row's logits; there are none if everything is null.
struct Changes {
  const uint16_t* counts = nullptr;  // [vocab]
  const uint32_t* mask = nullptr;    // [ceil(vocab / 32)]
  const int32_t* bias_ids = nullptr;
  const float* bias_values = nullptr;
  int num_bias = 0;
  int num_ends = 0;  // end tokens of RowShared::slot

  __device__ bool any() const { return counts != nullptr || mask != nullptr || num_bias > 0 || num_ends > 0; }
};

// Loads a lane's share of the row, with −inf beyond its end.
__device__ __forceinline__ void load_share(const float* own, int left, int chunk, bool vectors,
                                           float4 (&four)[kMaxSteps]) {
  const float masked = masked_logit();
  if (vectors) {
#pragma unroll
    for (int i = 0; i < kMaxSteps; ++i) {
      four[i] = make_float4(masked, masked, masked, masked);
      const bool there = i * kLaneStep < chunk && i * kLaneStep < left;
      if (there) four[i] = __ldcg(reinterpret_cast<const float4*>(own + i * kLaneStep));
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kMaxSteps; ++i) {
    const int more = i * kLaneStep < chunk ? left - i * kLaneStep : 0;
    const float* from = own + i * kLaneStep;
    four[i].x = more > 0 ? __ldcg(from) : masked;
    four[i].y = more > 1 ? __ldcg(from + 1) : masked;
    four[i].z = more > 2 ? __ldcg(from + 2) : masked;
    four[i].w = more > 3 ? __ldcg(from + 3) : masked;
  }
}

__device__ __forceinline__ void load_row(const Row& row, const float* logits, float4 (&four)[kMaxSteps]) {
  int chunk = row.chunk;
  int first = row.warp_first() + row.lane * 4;
  // These values are made opaque to the compiler. Otherwise a loop around this code would keep dozens of
  // precomputed addresses and comparisons in registers.
  asm volatile("" : "+r"(chunk), "+r"(first));
  const bool vectors = row.vocab % 4 == 0 && reinterpret_cast<uintptr_t>(logits) % 16 == 0;
  load_share(logits + first, row.vocab - first, chunk, vectors, four);
}

// Returns a warp's best logit and token as one number, in all lanes. The number is larger for a larger logit
// and, among equal logits, for a lower id. kNanKey means that a logit is NaN, and 0 that the warp has no
// token.
__device__ __forceinline__ uint64_t warp_best(const Row& row, float value, int id) {
  const uint32_t order = value != value ? 0xffffffffU : ordered(value);
  const uint32_t largest = __reduce_max_sync(kAll, order);
  const uint32_t complement =
      __reduce_max_sync(kAll, order == largest ? 0xffffffffU - static_cast<uint32_t>(id) : 0U);
  if (largest == 0xffffffffU) return kNanKey;
  return row.warp_first() < row.vocab ? static_cast<uint64_t>(largest) << 32 | complement : 0;
}
__device__ __forceinline__ float larger_or_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
__device__ __forceinline__ uint64_t warp_best(const Row& row, const float4 (&four)[kMaxSteps]) {
  float top = masked_logit();
#pragma unroll
  for (int i = 0; i < kMaxSteps; ++i) {
    top = larger_or_nan(
        top, larger_or_nan(larger_or_nan(four[i].x, four[i].y), larger_or_nan(four[i].z, four[i].w)));
  }
  const int first = row.warp_first() + row.lane * 4;
  int id = first;
#pragma unroll
  for (int i = kMaxSteps - 1; i >= 0; --i) {  // backwards, so that the lowest id wins
    id = four[i].w == top ? first + i * kLaneStep + 3 : id;
    id = four[i].z == top ? first + i * kLaneStep + 2 : id;
    id = four[i].y == top ? first + i * kLaneStep + 1 : id;
    id = four[i].x == top ? first + i * kLaneStep : id;
  }
  return warp_best(row, top, id);
}

// Holds the key of a loaded row's best token, and the smallest of the warps' best logits, as ordered(). At
// least Row::num_warps tokens, one for each warp that has any, are at or above that logit.
struct Loaded {
  uint64_t best;
  uint32_t least_warp_best;
};
__device__ __forceinline__ Loaded best_of_cluster(Row& row, uint64_t key) {
  uint64_t* warps = row.shared.warp_values[row.parity];
  if (row.lane == 0) warps[row.warp] = key;
  __syncthreads();
  if (row.warp == 0) {
    key = row.lane < kWarps ? warps[row.lane] : 0;
    // The minimum is computed as a maximum of complements; a warp beyond the row's end has key 0 and does not
    // count.
    const auto value = static_cast<uint32_t>(key >> 32);
    const uint32_t complement = __reduce_max_sync(kAll, key == 0 ? 0U : ~value);
    const uint32_t largest = __reduce_max_sync(kAll, value);
    const uint32_t id = __reduce_max_sync(kAll, value == largest ? static_cast<uint32_t>(key) : 0U);
    if (row.lane < kClusterBlocks) {
      row.publish(0, row.lane, static_cast<uint64_t>(largest) << 32 | id);
      row.publish(1, row.lane, complement);
    }
  }
  const Row::Published all = row.published();
  auto larger = [](uint64_t a, uint64_t b) { return a > b ? a : b; };
  return {Row::of_all(all, 0, larger), ~static_cast<uint32_t>(Row::of_all(all, 1, larger))};
}
__device__ __forceinline__ float best_value(uint64_t key) {
  return from_ordered(static_cast<uint32_t>(key >> 32));
}
__device__ __forceinline__ int best_id(uint64_t key) {
  return static_cast<int>(0xffffffffU - static_cast<uint32_t>(key));
}

// Applies `changes` to the logits in shared memory, and returns the warp's best token afterwards. If a bias
// names a token twice, both entries are added, in order.
__device__ inline uint64_t change_row(Row& row, const Changes& changes) {
  float* own = row.values + row.warp * row.chunk;
  if (changes.counts != nullptr || changes.mask != nullptr) {
#pragma unroll 1
    for (int i = row.lane * 4; i < row.chunk; i += kLaneStep) {  // each lane changes the values it stored
      const int id = row.warp_first() + i;
      if (id >= row.vocab) break;
      const uint32_t allowed = changes.mask != nullptr ? changes.mask[id / 32] >> (id % 32) : 0xfU;
#pragma unroll 1
      for (int j = 0; j < 4 && id + j < row.vocab; ++j) {
        float x = own[i + j];
        if (changes.counts != nullptr) x = penalised(row.shared.slot, x, changes.counts[id + j]);
        own[i + j] = (allowed >> j & 1U) != 0 ? x : masked_logit();
      }
    }
  }
  const int first = row.block_first();
  const int count = kWarps * row.chunk;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < changes.num_bias; i += kThreads) {
    const int id = changes.bias_ids[i];
    if (id < first || id >= first + count) continue;
    bool seen = false;
#pragma unroll 1
    for (int j = 0; j < i; ++j) seen |= changes.bias_ids[j] == id;
    if (seen) continue;                // its first entry's thread adds all of them
    float x = row.values[id - first];  // −inf stays, because masks have precedence
#pragma unroll 1
    for (int j = i; j < changes.num_bias; ++j) {
      if (changes.bias_ids[j] == id) x = __fadd_rn(x, changes.bias_values[j]);
    }
    row.values[id - first] = x;
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < changes.num_ends) {
    const int id = row.shared.slot.ends[threadIdx.x];
    if (id >= first && id < first + count) row.values[id - first] = masked_logit();
  }
  __syncthreads();
  float top = masked_logit();
  int best = row.warp_first() + row.lane * 4;
  row.for_each([&](float x, int id) {
    if (x > top) {
      top = x;
      best = id;
    }
  });
  return warp_best(row, top, best);
}

// Applies the changes to the row that load_row has loaded, leaves it in shared memory if `keep`, and returns
// the cluster's best (kNanKey: the unchanged logits hold NaN).
__device__ inline Loaded take_row(Row& row, const float4 (&four)[kMaxSteps], const Changes& changes,
                                  bool keep) {
  const bool changed = changes.any();
  if (keep || changed) {
    float* kept = row.values + row.warp * row.chunk + row.lane * 4;
#pragma unroll
    for (int i = 0; i < kMaxSteps; ++i) {
      if (i * kLaneStep < row.chunk) *reinterpret_cast<float4*>(kept + i * kLaneStep) = four[i];
    }
  }
  uint64_t key = warp_best(row, four);
  if (changed) {
    const uint64_t after = change_row(row, changes);
    key = key == kNanKey ? key : after;
  }
  row.listed = false;
  return best_of_cluster(row, key);
}

}  // namespace hadal::cuda::sampling
