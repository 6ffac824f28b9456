// Implements the stable counting sort of (token, choice) pairs by expert, which the kernels of `route` share.
//
// For a run of tokens, each expert has a bit mask of the tokens that chose it. Masks are set with atomic OR,
// so the result does not depend on the order. The count of an expert is the number of its set bits, and a
// pair's rank among the expert's pairs is the number of lower set bits. No token chooses an expert twice.
#pragma once

#include <cstdint>

#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/experts/route/choice.h"

namespace hadal::cuda {

inline constexpr int kMaxSortedExperts = kMaxRouted + 32;  // including shared experts
inline constexpr int kMaxRouteWarps = 32;

// Computes offsets[e] = Σ count(e') over e' < e that are held, for all e up to the number of experts, and
// *distinct, the number of routed experts whose count is not 0. Both are in shared memory. All threads of the
// block call this function after a barrier, and it ends with a barrier.
template <typename Count>
__device__ __forceinline__ void scan_experts(const RouteParams& p, Count count, int* offsets, int* distinct) {
  __shared__ int totals[kMaxRouteWarps];
  __shared__ int used[kMaxRouteWarps];
  const int experts = p.num_experts + p.num_shared;
  const int lane = threadIdx.x % 32;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int per_thread = static_cast<int>((experts + blockDim.x - 1) / blockDim.x);
  const int first = static_cast<int>(threadIdx.x) * per_thread;
  int sum = 0;
  int hit = 0;
  for (int e = first; e < min(first + per_thread, experts); ++e) {
    const int n = count(e);
    sum += is_held(p, e) ? n : 0;
    hit += e < p.num_experts && n > 0 ? 1 : 0;
  }
  int inclusive = sum;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffU, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  hit = static_cast<int>(__reduce_add_sync(0xffffffffU, static_cast<unsigned>(hit)));
  if (lane == 31) {
    totals[warp] = inclusive;
    used[warp] = hit;
  }
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x / 32);
  const auto before = static_cast<int>(
      __reduce_add_sync(0xffffffffU, static_cast<unsigned>(lane < warp && lane < warps ? totals[lane] : 0)));
  int offset = before + inclusive - sum;
  for (int e = first; e < min(first + per_thread, experts); ++e) {
    offsets[e] = offset;
    offset += is_held(p, e) ? count(e) : 0;
    if (e == experts - 1) offsets[experts] = offset;
  }
  if (warp == 0) {
    *distinct = static_cast<int>(
        __reduce_add_sync(0xffffffffU, static_cast<unsigned>(lane < warps ? used[lane] : 0)));
  }
  __syncthreads();
}

// Stores expert_offsets and num_distinct; called by one block.
__device__ __forceinline__ void store_offsets(const RouteParams& p, int experts, const int* offsets,
                                              int distinct) {
  for (int e = static_cast<int>(threadIdx.x); e <= experts; e += static_cast<int>(blockDim.x)) {
    p.expert_offsets[e] = offsets[e];
  }
  if (threadIdx.x == 0 && p.num_distinct != nullptr) *p.num_distinct = distinct;
}

}  // namespace hadal::cuda
