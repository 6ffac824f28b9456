// Reads what a step has computed, once the device has finished it.
#include "base/check.h"
#include "engine/cuda/cuda_executor.h"

namespace hadal {
namespace {

// After a pause between two steps that is longer than this, which the schedule does not explain, the step is
// placed on the host's clock anew.
constexpr float kLongPauseMs = 50.0F;

}  // namespace

StepOutput CudaExecutor::wait() {
  HADAL_CHECK(!in_flight_.empty(), "no step is in flight");
  HADAL_CHECK(!in_flight_.front().awaits_masks, "the masks of step {} are not set", in_flight_.front().step);
  Pending pending = std::move(in_flight_.front());
  in_flight_.pop_front();
  StepOutput output;
  if (pending.error.empty()) {
    try {
      events(pending.step_idx).done.wait();
      if (end_.device != nullptr) end_.device->check();
      collect(pending, output);
    } catch (const std::exception& error) {
      fail(pending, error.what());
    }
  }
  if (!pending.error.empty()) {
    output = StepOutput();
    output.error = pending.error;
    output.fatal = pending.fatal;
    last_idx_ = -1;
  }
  output.step = pending.step;
  return output;
}

void CudaExecutor::collect(const Pending& pending, StepOutput& output) {
  const int step_idx = pending.step_idx;
  output.graphed = pending.graphed;
  output.exchanges = pending.exchanges;
  output.distinct_experts = results_.distinct_experts(step_idx);
  output.samples.resize(pending.samples.size());
  for (size_t i = 0; i < pending.samples.size(); ++i) {
    const Sample& sample = pending.samples[i];
    SampledToken& token = output.samples[i];
    token.slot = sample.slot;
    token.error = sample.error;
    if (!token.error.empty()) continue;
    if (speculation_) {
      collect_chain(pending, i, token);
      continue;
    }
    const cuda::SampleResult& result = results_.result(step_idx, sample.constrained, sample.result);
    if (result.has_nan != 0) {
      token.error = "the model's logits contain NaN";
      continue;
    }
    token.token = result.token;
    if (sample.wants_logprob) token.logprob = results_.logprob(step_idx, sample.constrained, sample.result);
  }
  for (const auto& [slot, idx] : pending.scores)
    output.prompt_scores.emplace_back(slot, results_.score(step_idx, idx));
  if (pending.profile != nullptr) output.ops = pending.profile->timings();
  place_in_time(pending, output);
}

void CudaExecutor::place_in_time(const Pending& pending, StepOutput& output) {
  const auto duration = [](double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  };
  const StepEvents& now = events(pending.step_idx);
  output.run_s = static_cast<double>(now.end.ms_since(now.begin)) * 1e-3;
  output.begin = Clock::now() - duration(output.run_s);
  if (last_idx_ >= 0) {
    const float pause_ms = now.begin.ms_since(events(last_idx_).end);
    if (pause_ms < kLongPauseMs) output.begin = last_end_ + duration(static_cast<double>(pause_ms) * 1e-3);
  }
  last_idx_ = pending.step_idx;
  last_end_ = output.begin + duration(output.run_s);
}

}  // namespace hadal
