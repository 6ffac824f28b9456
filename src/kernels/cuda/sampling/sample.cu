// Chooses tokens from logits.
//
// Grid: one cluster of eight blocks per row, with 512 threads per block; nothing in the grid depends on the
// rows' parameters. Blocks of a row with slot < 0 end at once. The cluster reads the row once and keeps it in
// shared memory (4 bytes per token: 64 KB per block for 129,280 tokens) unless only the best token is
// needed. There are two cluster barriers for the best token, one more for a draw, and three per level of a
// truncation (truncation.cuh). Log-probabilities read the row again, from the L2. A thread has at most 64
// registers, so that two blocks share a multiprocessor. Shared memory holds 23 KB of RowShared, then the row.
// Vocabularies above 131,072 tokens use the plain kernel (reference.cu).
#include <algorithm>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/sampling/load.cuh"
#include "kernels/cuda/sampling/logprobs.cuh"
#include "kernels/cuda/sampling/race.cuh"
#include "kernels/cuda/sampling/reference.h"

namespace hadal::cuda {
namespace sampling {
namespace {

extern __shared__ __align__(16) std::byte shared_memory[];

__device__ void accept(const SampleParams& params, const SampleRow& row, int row_idx, int32_t token) {
  params.results[row_idx] = {token, 0, 0.0F, 0};
  if (!params.commits) return;
  params.last_token[row.slot] = token;
  SlotSampling& slot = params.slots[row.slot];
  ++slot.num_generated;
  if (slot.uses_counts != 0 && params.counts != nullptr)
    count_token(params.counts + row.slot * params.vocab, token);
}

// Chooses among the tokens in shared memory; `best_key` is the key of the best one. All threads return the
// chosen token.
__device__ int32_t draw(Row& row, uint64_t best_key, uint32_t least_warp_best, int64_t position) {
  const SlotSampling& slot = row.shared.slot;
  const float best = best_value(best_key);
  Truncation what{};
  what.lowest = kLowestUnmasked;
  what.best = best;
  what.scale = weight_scale(slot.temperature);
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
  return first_of_race(row, best_key, Bound(what.lowest), what.scale, position);
}

__global__ void __cluster_dims__(kClusterBlocks, 1, 1) __launch_bounds__(kThreads, 2)
    sample_kernel(const SampleParams params, int chunk) {
  pdl_wait();
  const int row_idx = static_cast<int>(blockIdx.x) / kClusterBlocks;
  const SampleRow request = params.rows[row_idx];
  if (request.slot < 0) return;
  Row row(shared_memory, params.vocab, chunk);
  const float* logits = params.logits + request.logit_row * params.vocab;
  float4 four[kMaxSteps];
  load_row(row, logits, four);  // needs no data of the slot, so it is in flight while the slot is read
  const SlotSampling& slot = row.shared.slot;
  {
    const auto* source = reinterpret_cast<const uint32_t*>(params.slots + request.slot);
    auto* target = reinterpret_cast<uint32_t*>(&row.shared.slot);
    for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(sizeof(SlotSampling) / 4);
         i += kThreads) {
      target[i] = source[i];
    }
  }
  cluster_sync();  // every block has started, so its shared memory may be written; and the slot has been read

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

  bool greedy = slot.temperature == 0.0F || slot.top_k == 1;
  uint64_t best = 0;
  uint32_t least_warp_best = 0;
  while (true) {
    const Loaded loaded = take_row(row, four, changes, !greedy);
    best = loaded.best;
    least_warp_best = loaded.least_warp_best;
    if (best_value(best) != masked_logit() || !changes.any()) break;
    // No token is allowed. First the end tokens are allowed again, because a grammar that allows only an end
    // token has precedence. If all tokens are still masked, the best of the unchanged logits is chosen.
    greedy |= changes.num_ends == 0;
    if (changes.num_ends == 0) changes = {};
    changes.num_ends = 0;
    load_row(row, logits, four);
  }
  // Either every token is masked, or the best logit is infinite, and then all other weights are zero.
  greedy |= isinf(best_value(best));
  pdl_launch_dependents();
  if (best == kNanKey) {
    if (row.rank == 0 && threadIdx.x == 0) params.results[row_idx] = {-1, 1, 0.0F, 0};
    return;
  }

  const int32_t chosen = greedy ? best_id(best) : draw(row, best, least_warp_best, request.position);
  const bool writes = row.rank == 0 && threadIdx.x == 0;
  const int num_top = params.commits ? slot.num_top_logprobs : -1;
  if (num_top < 0) {
    if (writes) accept(params, request, row_idx, chosen);
    return;
  }

  load_row(row, logits, four);
  const Loaded raw = take_row(row, four, Changes{}, true);
  const float best_logit = best_value(raw.best);
  const double log_sum = log_total(best_logit, row.total_weight(best_logit, kLog2e, INFINITY).all);
  const int wanted = min(min(num_top, kMaxTopLogprobs), row.vocab);
  if (writes) {
    accept(params, request, row_idx, chosen);
    params.results[row_idx] = {chosen, 0, logprob_of(logits[chosen], log_sum), max(wanted, 0)};
  }
  if (wanted > 0 && params.top_ids != nullptr) {
    write_top(row, best_logit, raw.least_warp_best, log_sum, wanted,
              params.top_ids + int64_t{row_idx} * kMaxTopLogprobs,
              params.top_logprobs + int64_t{row_idx} * kMaxTopLogprobs);
  }
}

__global__ void __cluster_dims__(kClusterBlocks, 1, 1) __launch_bounds__(kThreads, 2)
    score_kernel(const ScoreParams params, int chunk) {
  pdl_wait();
  const int row_idx = static_cast<int>(blockIdx.x) / kClusterBlocks;
  Row row(shared_memory, params.vocab, chunk);
  const int32_t token = params.token_ids[row_idx];
  const float* logits = params.logits + params.logit_rows[row_idx] * params.vocab;
  const int wanted = max(min(min(params.top_num[row_idx], kMaxTopLogprobs), row.vocab), 0);
  float4 four[kMaxSteps];
  load_row(row, logits, four);
  cluster_sync();  // every block has started
  const Loaded loaded = take_row(row, four, Changes{}, true);
  const uint64_t best = loaded.best;
  pdl_launch_dependents();
  if (best == kNanKey) {
    if (row.rank == 0 && threadIdx.x == 0) params.results[row_idx] = {token, 1, NAN, 0};
    return;
  }
  const double log_sum =
      log_total(best_value(best), row.total_weight(best_value(best), kLog2e, INFINITY).all);
  if (row.rank == 0 && threadIdx.x == 0) {
    params.results[row_idx] = {token, 0, logprob_of(logits[token], log_sum), wanted};
  }
  if (wanted > 0) {
    write_top(row, best_value(best), loaded.least_warp_best, log_sum, wanted,
              params.top_ids + int64_t{row_idx} * kMaxTopLogprobs,
              params.top_logprobs + int64_t{row_idx} * kMaxTopLogprobs);
  }
}

__global__ void __launch_bounds__(1024)
    start_counts_kernel(uint16_t* counts, int64_t vocab, const int32_t* prompt, int64_t num_prompt,
                        const int32_t* generated, int64_t num_generated) {
  pdl_wait();
  for (int64_t i = threadIdx.x; i < vocab; i += blockDim.x) counts[i] = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < num_prompt; i += blockDim.x) {
    counts[prompt[i]] = 0x8000;  // every thread that writes it writes the same value
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < num_generated; i += blockDim.x) {
    unsigned short* count = counts + generated[i];
    unsigned short seen = *const_cast<volatile unsigned short*>(count);
    while ((seen & 0x7fff) != 0x7fff) {
      const unsigned short before = atomicCAS(count, seen, static_cast<unsigned short>(seen + 1));
      if (before == seen) break;
      seen = before;
    }
  }
}

}  // namespace
}  // namespace sampling

void sample(const SampleParams& params, const Launch& launch) {
  if (launch.reference || params.vocab > sampling::kMaxVocab) return reference::sample(params, launch);
  const int chunk = sampling::chunk_of(params.vocab);
  launch_kernel<sampling::sample_kernel>(launch, dim3(params.num_rows * sampling::kClusterBlocks),
                                         dim3(sampling::kThreads), sampling::shared_bytes(chunk), params,
                                         chunk);
}

void score_tokens(const ScoreParams& params, const Launch& launch) {
  if (launch.reference || params.vocab > sampling::kMaxVocab) return reference::score_tokens(params, launch);
  const int chunk = sampling::chunk_of(params.vocab);
  launch_kernel<sampling::score_kernel>(launch, dim3(params.num_rows * sampling::kClusterBlocks),
                                        dim3(sampling::kThreads), sampling::shared_bytes(chunk), params,
                                        chunk);
}

void start_counts(uint16_t* counts, int64_t vocab, int32_t slot, const int32_t* prompt, int64_t num_prompt,
                  const int32_t* generated, int64_t num_generated, const Launch& launch) {
  launch_kernel<sampling::start_counts_kernel>(launch, dim3(1), dim3(1024), 0, counts + slot * vocab, vocab,
                                               prompt, num_prompt, generated, num_generated);
}

}  // namespace hadal::cuda
