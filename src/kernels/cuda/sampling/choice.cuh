// Prepares the choice of a token from a row: loads the row with the changes that the slot's parameters make,
// and finds the lowest key that truncation keeps.
#pragma once

#include "kernels/cuda/sampling/load.cuh"
#include "kernels/cuda/sampling/truncation.cuh"

namespace hadal::cuda::sampling {

// Copies the slot's parameters to shared memory, and returns when every block of the cluster has begun and
// has done so.
__device__ __forceinline__ void load_slot(Row& row, const SlotSampling* slot) {
  const auto* source = reinterpret_cast<const uint32_t*>(slot);
  auto* target = reinterpret_cast<uint32_t*>(&row.shared.slot);
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(sizeof(SlotSampling) / 4); i += kThreads)
    target[i] = source[i];
  cluster_sync();
}

struct Prepared {
  uint64_t best;  // key of the best token; kNanKey: the logits hold NaN
  uint32_t least_warp_best;
  bool greedy;      // the best token is chosen
  bool all_masked;  // no token is allowed, and the logits are the unchanged ones
};

// Applies the slot's changes to the row that load_row has loaded from `logits`. With `keep`, or if a token is
// drawn, the row lies in shared memory afterwards.
__device__ __forceinline__ Prepared prepare_row(Row& row, const SampleParams& params,
                                                const SampleRow& request, const float* logits,
                                                float4 (&four)[kMaxSteps], bool keep) {
  const SlotSampling& slot = row.shared.slot;
  const int64_t slot_idx = request.slot;
  Changes changes;
  if (slot.uses_counts != 0 && params.counts != nullptr)
    changes.counts = params.counts + slot_idx * params.vocab;
  if (request.mask_row >= 0) changes.mask = params.masks + request.mask_row * ((params.vocab + 31) / 32);
  if (params.bias_ids != nullptr && slot.num_bias > 0) {
    changes.num_bias = slot.num_bias;
    changes.bias_ids = params.bias_ids + slot_idx * kMaxBias;
    changes.bias_values = params.bias_values + slot_idx * kMaxBias;
  }
  if (slot.num_generated < slot.min_new_tokens) changes.num_ends = slot.num_ends;

  Prepared prepared{};
  prepared.greedy = slot.temperature == 0.0F || slot.top_k == 1;
  while (true) {
    const Loaded loaded = take_row(row, four, changes, keep || !prepared.greedy);
    prepared.best = loaded.best;
    prepared.least_warp_best = loaded.least_warp_best;
    if (best_value(loaded.best) != masked_logit() || !changes.any()) break;
    // No token is allowed. First the end tokens are allowed again, because a grammar that allows only an end
    // token has precedence. If all tokens are still masked, the best of the unchanged logits is chosen.
    prepared.all_masked = changes.num_ends == 0;
    prepared.greedy |= prepared.all_masked;
    if (changes.num_ends == 0) changes = {};
    changes.num_ends = 0;
    load_row(row, logits, four);
  }
  // Either every token is masked, or the best logit is infinite, and then all other weights are zero.
  prepared.greedy |= isinf(best_value(prepared.best));
  return prepared;
}

// Returns the lowest key that the slot's truncation keeps, of the tokens in shared memory. `scale` is that of
// their weights.
__device__ inline uint64_t lowest_of_truncation(Row& row, uint64_t best_key, uint32_t least_warp_best,
                                                float scale) {
  const SlotSampling& slot = row.shared.slot;
  const float best = best_value(best_key);
  Truncation what{};
  what.lowest = kLowestUnmasked;
  what.best = best;
  what.scale = scale;
  const bool by_count = slot.top_k > 0 && slot.top_k < row.vocab;
  if (by_count) {
    what.k = static_cast<uint32_t>(slot.top_k);
    what.lowest = lowest_of_best(row, least_warp_best, slot.top_k, what.lowest);
    what.lowest = lowest_kept<false>(row, what);
  }
  if (slot.top_p < 1.0F) {
    what.p = slot.top_p;
    if (!by_count) {
      // The search need not read all tokens. The load has given a logit, and the tokens at or above it
      // suffice if they have enough mass. Otherwise tokens whose weight is below `least` are left out: all of
      // them together have less than half of the mass that p leaves out.
      const float high = from_ordered(least_warp_best);
      const Row::Mass mass = row.total_weight(best, what.scale, high);
      what.mass = static_cast<double>(mass.all) * 0x1p-44;
      float logit = high;
      if (static_cast<double>(mass.above) * 0x1p-44 < static_cast<double>(slot.top_p) * what.mass) {
        const double least =
            (1.0 - static_cast<double>(slot.top_p)) * 0.5 * what.mass / static_cast<double>(row.vocab);
        logit = min_p_bound(best, slot.temperature, static_cast<float>(fmin(least, 1.0)));
      }
      const uint64_t lowest = static_cast<uint64_t>(ordered(logit)) << kIdBits;
      what.lowest = lowest > what.lowest ? lowest : what.lowest;
    }
    what.lowest = lowest_kept<true>(row, what);
  }
  if (slot.min_p > 0.0F) {
    const float bound = min_p_bound(best, slot.temperature, slot.min_p);
    const uint64_t lowest = static_cast<uint64_t>(ordered(bound)) << kIdBits;
    what.lowest = lowest > what.lowest ? lowest : what.lowest;
  }
  return what.lowest;
}

}  // namespace hadal::cuda::sampling
