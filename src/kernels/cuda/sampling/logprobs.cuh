// Computes log-probabilities of unmodified logits, which lie in the cluster's shared memory.
#pragma once

#include "kernels/cuda/sampling/truncation.cuh"

namespace hadal::cuda::sampling {

__device__ __forceinline__ double log_total(float best, uint64_t total) {
  return static_cast<double>(best) + log(static_cast<double>(total) * 0x1p-44);
}
__device__ __forceinline__ float logprob_of(float x, double log_sum) {
  return static_cast<float>(static_cast<double>(x) - log_sum);
}

// Calls emit(place, id, x) in a thread of block 0 for each of the `num` best tokens, where place 0 is that of
// the best one and x is the value. 1 ≤ num ≤ min(vocab, kMaxTopLogprobs).
template <typename Emit>
__device__ __forceinline__ void for_each_of_best(Row& row, float best, uint32_t least_warp_best, int num,
                                                 const Emit& emit) {
  Truncation what{};
  what.lowest = lowest_of_best(row, least_warp_best, num, kLowestKey);
  what.k = static_cast<uint32_t>(num);
  what.best = best;
  what.scale = kLog2e;
  const Bound bound(lowest_kept<false>(row, what));
  RowShared& shared = row.shared;
  if (threadIdx.x == 0) shared.list_size = 0;
  cluster_sync();
  row.for_each([&](float x, int id) {
    if (!bound.keeps(x, id) || id >= row.vocab) return;
    const uint64_t key = key_of<kIdBits>(x, id);
    const uint32_t at = add_in_block(&shared.list_size, 0, 1);
    store_in_block(&shared.list[at], 0, key);  // in any order; sorted below
  });
  cluster_sync();
  const auto thread = static_cast<int>(threadIdx.x);
  if (row.rank != 0 || thread >= num) return;
  const uint64_t key = shared.list[thread];
  int place = 0;
  for (int i = 0; i < num; ++i) place += shared.list[i] > key ? 1 : 0;
  emit(place, static_cast<int32_t>(kMaxVocab - 1 - static_cast<int64_t>(key & (kMaxVocab - 1))),
       from_ordered(static_cast<uint32_t>(key >> kIdBits)));
}

// Writes the `num` best tokens with their log-probabilities, best first, to top_ids and top_logprobs.
__device__ inline void write_top(Row& row, float best, uint32_t least_warp_best, double log_sum, int num,
                                 int32_t* top_ids, float* top_logprobs) {
  for_each_of_best(row, best, least_warp_best, num, [&](int place, int32_t id, float x) {
    top_ids[place] = id;
    top_logprobs[place] = logprob_of(x, log_sum);
  });
}

}  // namespace hadal::cuda::sampling
