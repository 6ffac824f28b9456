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
#include "kernels/cuda/sampling/choice.cuh"
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
  const float scale = weight_scale(row.shared.slot.temperature);
  const uint64_t lowest = lowest_of_truncation(row, best_key, least_warp_best, scale);
  return first_of_race(row, best_key, Bound(lowest), scale, position);
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
  load_slot(row, params.slots + request.slot);
  const SlotSampling& slot = row.shared.slot;
  const Prepared prepared = prepare_row(row, params, request, logits, four, false);
  const uint64_t best = prepared.best;
  pdl_launch_dependents();
  if (best == kNanKey) {
    if (row.rank == 0 && threadIdx.x == 0) params.results[row_idx] = {-1, 1, 0.0F, 0};
    return;
  }

  const int32_t chosen =
      prepared.greedy ? best_id(best) : draw(row, best, prepared.least_warp_best, request.position);
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
