// Chooses the drafts after a row of NextN's logits, as engine/sampler.cpp does.
//
// Grid, shared memory and registers are those of sample.cu: one cluster of eight blocks per row. The row's
// logits are replaced by scores (score_row), so that the best of them and the sum of their shares are found
// as those of logits are. Ten cluster barriers or more follow the load.
#include <array>

#include "base/gumbel.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/sampling/choice.cuh"
#include "kernels/cuda/sampling/logprobs.cuh"
#include "kernels/cuda/sampling/reference.h"

namespace hadal::cuda {
namespace sampling {
namespace {

extern __shared__ __align__(16) std::byte drafts_shared_memory[];

// Replaces the logits in shared memory by scores, logit / T + noise less the largest logit / T, and returns
// the best of them. Tokens that `kept` does not keep get −inf, and so may tokens with a negligible score.
__device__ Loaded score_row(Row& row, uint64_t best, const Bound& kept, int64_t position) {
  const uint64_t seed = row.shared.slot.seed;
  const auto at = static_cast<uint64_t>(position);
  const float best_logit = best_value(best);
  const float inverse = fminf(1.0F / row.shared.slot.temperature, 3e38F);
  // The largest score is at least that of the token with the largest logit.
  const float floor =
      -logf(exponential_noise(noise_bits(seed, at, static_cast<uint32_t>(best_id(best))))) - kNegligibleScore;
  float* own = row.values + row.warp * row.chunk;
  float top = masked_logit();
  int best_of_lane = row.warp_first() + row.lane * 4;
#pragma unroll 1
  for (int i = row.lane * 4; i < row.chunk; i += kLaneStep) {  // beyond the row's end the logits are −inf
    const int id = row.warp_first() + i;
    float4 four = *reinterpret_cast<const float4*>(own + i);
    float x[4] = {four.x, four.y, four.z, four.w};
    bool counts[4];
    bool any = false;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      counts[j] = kept.keeps(x[j], id + j);
      x[j] = (x[j] - best_logit) * inverse;
      counts[j] = counts[j] && x[j] + kLargestGumbel >= floor;
      any |= counts[j];
    }
    const auto bits =
        any ? noise_bits_of_four(seed, at, static_cast<uint32_t>(id) / 4) : std::array<uint32_t, 4>{};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      x[j] = counts[j] ? x[j] - logf(exponential_noise(bits[j])) : masked_logit();
      if (x[j] > top) {  // ids ascend, so of equal scores the lower id stays
        top = x[j];
        best_of_lane = id + j;
      }
    }
    *reinterpret_cast<float4*>(own + i) = make_float4(x[0], x[1], x[2], x[3]);
  }
  row.listed = false;
  return best_of_cluster(row, warp_best(row, top, best_of_lane));
}

__global__ void __cluster_dims__(kClusterBlocks, 1, 1) __launch_bounds__(kThreads, 2)
    choose_drafts_kernel(const SampleParams params, int count, DraftGuess* guesses, int chunk) {
  pdl_wait();
  const int row_idx = static_cast<int>(blockIdx.x) / kClusterBlocks;
  const SampleRow request = params.rows[row_idx];
  if (request.slot < 0) return;
  Row row(drafts_shared_memory, params.vocab, chunk);
  const float* logits = params.logits + request.logit_row * params.vocab;
  float4 four[kMaxSteps];
  load_row(row, logits, four);
  load_slot(row, params.slots + request.slot);
  const Prepared prepared = prepare_row(row, params, request, logits, four, true);
  pdl_launch_dependents();
  DraftGuess* out = guesses + int64_t{row_idx} * count;
  for (int i = static_cast<int>(threadIdx.x); row.rank == 0 && i < count; i += kThreads) out[i] = {};
  if (prepared.best == kNanKey) return;
  if (prepared.all_masked) {
    __syncthreads();
    if (row.rank == 0 && threadIdx.x == 0) out[0] = {best_id(prepared.best), 0.0F};
    return;
  }
  if (isinf(best_value(prepared.best))) return;

  Loaded scores{prepared.best, prepared.least_warp_best};
  if (!prepared.greedy) {
    const uint64_t lowest = lowest_of_truncation(row, prepared.best, prepared.least_warp_best,
                                                 weight_scale(row.shared.slot.temperature));
    scores = score_row(row, prepared.best, Bound(lowest), request.position);
  }
  const float best = best_value(scores.best);
  const float least = best - kNegligibleScore;
  const double log_sum = log_total(best, row.total_weight(best, kLog2e, least).above);
  for_each_of_best(row, best, scores.least_warp_best, min(count, row.vocab),
                   [&](int place, int32_t id, float score) {
                     if (score >= least) out[place] = {id, logprob_of(score, log_sum)};
                   });
}

}  // namespace
}  // namespace sampling

void choose_drafts(const SampleParams& params, int count, DraftGuess* guesses, const Launch& launch) {
  HADAL_CHECK(count >= 1 && count <= kMaxTopLogprobs, "{} drafts; allowed: 1 to {}", count, kMaxTopLogprobs);
  if (launch.reference || params.vocab > sampling::kMaxVocab)
    return reference::choose_drafts(params, count, guesses, launch);
  const int chunk = sampling::chunk_of(params.vocab);
  launch_kernel<sampling::choose_drafts_kernel>(launch, dim3(params.num_rows * sampling::kClusterBlocks),
                                                dim3(sampling::kThreads), sampling::shared_bytes(chunk),
                                                params, count, guesses, chunk);
}

}  // namespace hadal::cuda
