// Runs one static batch on an executor, without the engine, for `hadal bench one-batch`. First come the
// prompts of all sequences (on the CPU in one step, on a GPU in steps of a limited number of tokens), then
// each step decodes one token of every sequence, greedily. With speculation each of these steps verifies as
// many drafts of every sequence as the flags say. With fill_cache no prompt is computed except its last
// token: the records of the others are random.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "cli/session.h"
#include "cli/static_batch.h"
#include "cli/terminal.h"
#include "engine/step_executor.h"

namespace hadal::cli {

struct BatchShape {
  int64_t batch_size = 0;
  int64_t input_len = 0;
  int64_t output_len = 0;  // the prompt's step and output_len - 1 more steps
  int64_t width = 0;       // rows that a step has for a sequence with speculation; 0: without it
  // The last long_rows sequences have prompts of long_input_len tokens instead.
  int64_t long_rows = 0, long_input_len = 0;
  bool fill_cache = false;

  int64_t short_rows() const { return batch_size - long_rows; }
  int64_t input_len_of(int64_t sequence) const {
    return sequence < short_rows() ? input_len : long_input_len;
  }
  int64_t most_input() const { return std::max(input_len, long_rows > 0 ? long_input_len : 0); }
  int64_t num_input() const { return short_rows() * input_len + long_rows * long_input_len; }
  // A sequence gets at most this many tokens, which includes the additional step of --profile.
  int64_t tokens_for(int64_t input) const { return input + output_len * std::max<int64_t>(width, 1); }
  int64_t most_tokens() const { return tokens_for(most_input()); }
  StaticBatch sequences() const;
};

struct BatchTimes {
  double prefill_s = 0.0;                         // from the launch to the result; 0 with fill_cache
  double prefill_gpu_s = 0.0;                     // time of the kernels, as the executor reports
  std::vector<double> decode_s, decode_gpu_s;     // per step
  double decode_bytes = 0.0;                      // mean over the steps
  double distinct_experts = 0.0;                  // mean over MoE layers and decode steps
  double accept_length = 1.0;                     // mean number of tokens of a sequence in a decode step
  StepExchanges exchanges;                        // of a decode step
  std::vector<OpTiming> prefill_ops, decode_ops;  // one more step of each kind, with --profile
};

// Makes an executor with room for the shape, and with a graph of its decode steps if graphs may be so large.
// With fill_cache its cache is filled, from the seed of the session.
Result<std::unique_ptr<StepExecutor>> make_batch_executor(const ParsedFlags& flags, Session& session,
                                                          const KvLayout& layout, const BatchShape& shape);

// BatchRun runs the steps of one shape on an executor; each sequence has a slot.
class BatchRun {
 public:
  BatchRun(Session& session, const KvLayout& layout, const BatchShape& shape, StepExecutor& executor);

  // `prompts` has the tokens of all sequences, one sequence after the other: shape.num_input().
  Result<BatchTimes> run(std::span<const int32_t> prompts, int64_t output_len, bool profile,
                         const InterruptGuard& guard);

 private:
  // With `profile`, only the first step is run, and its operations are timed.
  Result<void> prefill(std::span<const int32_t> prompts, BatchTimes& times, bool profile);
  // Computes the prompts of sequences [first, first + count), which have `length` tokens each. It returns
  // true if the caller is to stop, because only one step was wanted.
  Result<bool> prefill_sequences(std::span<const int32_t> prompts, int64_t first, int64_t count,
                                 int64_t length, BatchTimes& times, bool profile);
  // Computes the last token of each prompt; all other records are those with which the cache was filled.
  Result<void> begin_filled(std::span<const int32_t> prompts);
  // Decodes the token that is `step` places behind the prompt of each sequence.
  Result<StepOutput> decode(int64_t step, bool profile);
  Result<StepOutput> verify(bool profile);
  Result<StepOutput> carry_out(StagedStep staged);
  // Returns a decode step of these tokens, `step` places behind the prompts, whose rows are all sampled.
  StagedStep decode_step(std::span<const int32_t> ids, int64_t step);
  int64_t bytes_read(const StepOutput& output, int64_t step);

  Backend& backend_;
  const KvLayout layout_;
  const BatchShape shape_;
  StepExecutor& executor_;
  const int64_t num_caches_;  // each rank reads its own
  StaticBatch batch_;
  int64_t last_step_ = 0;
  double wall_s_ = 0.0;  // time of the last step
};

}  // namespace hadal::cli
