// Has the executor's functions that only steps with speculation use.
#include <algorithm>
#include <utility>

#include "engine/cuda/cuda_executor.h"

namespace hadal {

// A step is padded to a graph's size only if it has verifications alone: rows with a grammar are sampled
// later, and rows of prompts or of tokens that are computed again differ from step to step.
GraphShape CudaExecutor::padded_shape(const StagedStep& step, bool selects) const {
  const ForwardBatch& batch = step.batch;
  if (batch.num_prefill_tokens > 0) return {};
  if (!speculation_) return choose_shape(shapes_, batch.num_tokens(), 1, selects, pad_);
  if (!CudaSpeculation::verifies_alone(step) || !step.scores.empty()) return {};
  int64_t width = 1;
  for (const SampleSpec& spec : step.samples) {
    if (spec.constrained) return {};
    width = std::max<int64_t>(width, spec.num_rows);
  }
  return choose_shape(shapes_, std::ssize(step.samples), width, selects, pad_);
}

CudaSpeculation::Pass CudaExecutor::pass_of(const Pending& pending, DeviceExec& exec) const {
  return {.view = pending.view,
          .cache = cache_,
          .slots = slots_,
          .results = results_,
          .logits = logits_.as<float>(),
          .exec = exec};
}

void CudaExecutor::run_speculating(Pending& pending, OpObserver* observer) {
  begin_exchanges();
  DeviceStep step = feed(pending.view);
  step.decode_settled = false;  // rows of a verification are keys of those after them
  step.decode_newest_seen = speculation_->newest_seen();
  DeviceExec exec = exec_of(observer);
  const CudaSpeculation::Pass pass = pass_of(pending, exec);
  // NextN's logits are read before the target's are written, and written after those have been read.
  speculation_->expand(pass);
  model_.decoder.forward(step, cache_,
                         {.logits = pass.logits,
                          .rows = DeviceOutputs::Hidden::kAllRows,
                          .hidden = speculation_->target_hidden()},
                         exec);
  speculation_->sample(pass, pass.logits, nullptr);
  score(pending);
  if (!pending.awaits_masks) speculation_->follow(pass);
  end_exchanges();
}

// NaN after an accepted draft is found by the next step, which computes that row again.
void CudaExecutor::collect_chain(const Pending& pending, size_t item, SampledToken& token) {
  const Sample& sample = pending.samples[item];
  const int32_t num_rows = speculation_->num_rows(pending.step_idx, item);
  token.verified = sample.verifies && num_rows > 0;
  token.num_drafts = sample.verifies ? std::max(num_rows - 1, 0) : 0;
  for (int depth = 0; depth < num_rows; ++depth) {
    const int64_t idx = pending.shape.result(item, depth);
    const cuda::SampleResult& result = results_.result(pending.step_idx, false, idx);
    if (depth == 0 && result.has_nan != 0) token.error = "the model's logits contain NaN";
    if (result.token < 0) return;
    std::optional<TokenLogprob> logprob;
    if (sample.wants_logprob) logprob = results_.logprob(pending.step_idx, false, idx);
    if (depth == 0) {
      token.token = result.token;
      token.logprob = std::move(logprob);
    } else {
      const int32_t row = speculation_->row_at(pending.step_idx, pending.shape, item, depth);
      token.further.push_back({.token = result.token, .row = row, .logprob = std::move(logprob)});
    }
  }
}

}  // namespace hadal
