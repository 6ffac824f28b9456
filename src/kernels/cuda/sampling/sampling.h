// Chooses tokens from logits on the device, with the order of operations and the ties of engine/sampler.h and
// the noise of (seed, position, token) that base/gumbel.h defines. This header includes no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch.h"

namespace hadal::cuda {

inline constexpr int kMaxEnds = 16;    // end and stop tokens of a slot that min_new_tokens masks
inline constexpr int kMaxBias = 1024;  // logit_bias entries of a slot
inline constexpr int kMaxTopLogprobs = 128;

// Holds a request's sampling values, which the device keeps by slot from the step that starts the request.
struct SlotSampling {
  float temperature = 1.0F;  // 0: greedy
  float top_p = 1.0F;
  float min_p = 0.0F;
  int32_t top_k = -1;
  float frequency_penalty = 0.0F, presence_penalty = 0.0F, repetition_penalty = 1.0F;
  uint64_t seed = 0;
  int64_t min_new_tokens = 0;
  int64_t num_generated = 0;  // counted up on the device with every sampled token
  int32_t num_ends = 0;
  int32_t num_bias = 0;
  int32_t ends[kMaxEnds] = {};
  int32_t uses_counts = 0;        // penalties are on: the slot's row of `counts` is kept
  int32_t num_top_logprobs = -1;  // −1: no log-probabilities; 0: the chosen token's; n: the n best as well
};

struct SampleRow {
  int32_t slot = -1;  // < 0: padding
  int32_t logit_row = 0;
  int64_t position = 0;   // position of the token to be chosen
  int32_t mask_row = -1;  // row of `masks`; −1: unconstrained
  int32_t padding = 0;
};

// Holds the result of a row, which the host reads after the step.
struct SampleResult {
  int32_t token = -1;
  int32_t has_nan = 0;  // the logits hold NaN: `token` is undefined, and the slot is unchanged
  float logprob = 0.0F;
  int32_t num_top = 0;
};

struct SampleParams {
  const float* logits = nullptr;  // [num_logit_rows, vocab], not changed
  int64_t vocab = 0;
  const SampleRow* rows = nullptr;  // [num_rows], device memory
  int num_rows = 0;
  SlotSampling* slots = nullptr;       // [max_slots]
  const int32_t* bias_ids = nullptr;   // [max_slots, kMaxBias]; null: no slot has a bias
  const float* bias_values = nullptr;  // [max_slots, kMaxBias]
  uint16_t* counts = nullptr;  // [max_slots, vocab]: bits 0–14 times generated (saturating), bit 15 in the
                               // prompt; null: no slot uses counts
  const uint32_t* masks = nullptr;  // [·, ceil(vocab/32)], bit t of word t/32: allowed
  int32_t* last_token = nullptr;    // [max_slots]: receives the sampled token
  SampleResult* results = nullptr;  // [num_rows]
  int32_t* top_ids = nullptr;       // [num_rows, kMaxTopLogprobs]; null: no row needs them
  float* top_logprobs = nullptr;    // [num_rows, kMaxTopLogprobs]
  // If false, the tokens are drafts: only `results` are written, without log-probabilities, and the slots
  // stay unchanged. If true, a slot has at most one row.
  bool commits = true;
};
void sample(const SampleParams& params, const Launch& launch);

// Holds a draft and the logarithm of its share among the tokens.
struct DraftGuess {
  int32_t token = -1;  // −1: there is none, and no further one
  float log_share = 0.0F;
};

// Chooses up to `count` drafts (1 … kMaxTopLogprobs) for the next token of each row, best first, as
// choose_drafts of engine/sampler.h does: by score, which is the logit or, with a draw, logit / T + noise.
// Rows whose logits hold NaN, or a largest logit that is infinite, get none. `guesses` [num_rows, count] are
// not written for padding. Of params only the logits, rows and slots' parameters are used, and nothing is
// changed.
void choose_drafts(const SampleParams& params, int count, DraftGuess* guesses, const Launch& launch);

// Requests the log-probabilities of given tokens (prompt scoring). Entry i scores token token_ids[i] and the
// top_num[i] best tokens of row logit_rows[i].
struct ScoreParams {
  const float* logits = nullptr;  // [·, vocab]
  int64_t vocab = 0;
  const int32_t* logit_rows = nullptr;  // [num_rows]
  const int32_t* token_ids = nullptr;   // [num_rows]
  const int32_t* top_num = nullptr;     // [num_rows]
  int num_rows = 0;
  SampleResult* results = nullptr;  // token = the given one; has_nan: logprob is NaN
  int32_t* top_ids = nullptr;       // [num_rows, kMaxTopLogprobs]
  float* top_logprobs = nullptr;
};
void score_tokens(const ScoreParams& params, const Launch& launch);

// Sets counts[slot, :] = 0, then sets bit 15 for each prompt token, then adds 1 for each generated one.
void start_counts(uint16_t* counts, int64_t vocab, int32_t slot, const int32_t* prompt, int64_t num_prompt,
                  const int32_t* generated, int64_t num_generated, const Launch& launch);

}  // namespace hadal::cuda
