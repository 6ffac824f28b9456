// Has the functions of a turn that read a step's outcome: tokens go to their requests, and the result
// for each request goes to the scheduler.
#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/loop/engine_loop.h"

namespace hadal {
namespace {

constexpr const char* kNanLogits = "the model's logits contain NaN";

}  // namespace

void EngineLoop::collect(StepRecord& record) {
  if (watchdog_.enabled()) {
    watched_ids_.clear();
    for (const WorkItem& item : record.plan.ranks[0].items) watched_ids_.push_back(item.request_id);
    watchdog_.set_step(record.plan.step, watched_ids_);
  }
  enter("run");
  StepOutput output = executor_->wait();
  forget_oldest();
  enter("collect");
  const auto now = Clock::now();
  HADAL_CHECK_EQ(output.step, record.plan.step);
  if (!output.error.empty()) {
    fail_step(record, output.error);
    bury(record.plan.step);
    if (output.fatal) throw Error(output.error);
    return;
  }
  HADAL_CHECK_EQ(output.samples.size(), record.samples.size());
  HADAL_CHECK_EQ(output.prompt_scores.size(), record.scores.size());
  const int64_t generated_before = counters_.generation_tokens;
  const SpeculationCounts speculation_before = counters_.speculation;
  take_scores(record, output);
  pace_.observe(record.plan.prompt_cost, output.run_s);
  outcomes_.clear();
  for (size_t i = 0; i < record.samples.size(); ++i) {
    Sequence& sequence = *record.samples[i];
    if (sequence.late_step == record.plan.step) {
      outcomes_.push_back({.request_id = sequence.id});  // ignored
    } else {
      outcomes_.push_back(take_tokens(sequence, output.samples[i], now));
    }
  }
  watchdog_.set_request(0);
  scheduler_.complete(record.plan, outcomes_);
  for (Sequence* sequence : record.ended_prompts) {
    if (sequence->finished) continue;
    sequence->first_token = now;
    if (sequence->score_is_nan) {
      finish_aborted(*sequence, AbortReason::kFault, kNanLogits);
    } else {
      finish(*sequence, FinishReason::kLength);
    }
  }
  // NaN among a prompt's scores is the fault of that request alone. The scheduler still has the request.
  for (Sequence* sequence : record.scores) {
    if (!sequence->finished && sequence->score_is_nan) fail(*sequence, kNanLogits);
  }
  ++counters_.num_steps;
  if (record.plan.num_prefill_tokens == 0) counters_.decode_graphed = output.graphed;
  log_.collected(record.plan, counters_.generation_tokens - generated_before,
                 counters_.speculation - speculation_before, output, scheduler_.stats(), now);
  if (trace_.active()) {
    const auto begin = output.begin != Clock::time_point{} ? output.begin : record.launched;
    const auto end =
        begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(output.run_s));
    trace_.span("run", StepTrace::Track::kWorker, record.plan.step, begin, end,
                record.plan.num_prefill_tokens + record.plan.num_decode_tokens);
    trace_.span("collect", StepTrace::Track::kEngine, record.plan.step, now, Clock::now());
    if (trace_.count_step()) {
      for (const auto& [id, sequence] : sequences_) {
        if (!sequence->finished) trace_.request(*sequence, now);
      }
      trace_.end();
    }
  }
  bury(record.plan.step);
}

void EngineLoop::take_scores(const StepRecord& record, StepOutput& output) {
  for (size_t i = 0; i < record.scores.size(); ++i) {
    Sequence& sequence = *record.scores[i];
    if (sequence.finished) continue;
    TokenLogprob& score = output.prompt_scores[i].second;
    if (std::isnan(score.logprob)) sequence.score_is_nan = true;
    // A list of all scores that grew step by step would be copied again and again.
    std::vector<TokenLogprob>& scores = sequence.pending.prompt_logprobs;
    if (scores.empty())
      scores.reserve(static_cast<size_t>(sequence.prompt_len - sequence.request.logprobs.start));
    scores.push_back(std::move(score));
  }
}

// Applies sampled tokens to their request; tokens after the request's end are dropped.
ItemOutcome EngineLoop::take_tokens(Sequence& sequence, SampledToken& sampled, Clock::time_point now) {
  ItemOutcome outcome{.request_id = sequence.id, .token = sampled.token, .finished = true};
  if (sequence.finished) return outcome;  // ended before this step did
  const auto fault = [&](const std::string& why) {
    log_error("request failed: id={} error=\"{}\"", sequence.id, why);
    finish_aborted(sequence, AbortReason::kFault, why);
    return outcome;
  };
  if (!sampled.error.empty()) return fault(sampled.error);
  if (sequence.score_is_nan) return fault(kNanLogits);
  HADAL_CHECK_GE(sampled.token, 0);

  if (sampled.verified) {  // before the last chunk, which has the counts
    const auto accepted = static_cast<int64_t>(sampled.further.size());
    const SpeculationCounts counts{
        .verifications = 1, .tokens = 1 + accepted, .drafts = sampled.num_drafts, .accepted = accepted};
    sequence.speculation += counts;
    counters_.speculation += counts;
    accepted_rows_.clear();
    for (const ChosenToken& chosen : sampled.further) accepted_rows_.push_back(chosen.row);
    if (policy_) policy_->observe(counts.drafts, accepted_rows_);
  }
  take_token(sequence, 0, sampled.token, sampled.logprob, now);
  for (ChosenToken& chosen : sampled.further) {
    if (sequence.finished) break;
    outcome.further.push_back(chosen.token);
    take_token(sequence, static_cast<size_t>(chosen.row), chosen.token, chosen.logprob, now);
  }
  outcome.finished = sequence.finished;
  if (sequence.finished) return outcome;
  if (sequence.mask != nullptr) {
    std::vector<int32_t> tokens = {sampled.token};
    tokens.insert(tokens.end(), outcome.further.begin(), outcome.further.end());
    mask_workers_.post(sequence.mask, std::move(tokens));
  }
  if (static_cast<int64_t>(sequence.pending.token_ids.size()) >= sequence.request.stream_interval) {
    delivery_.push(sequence);
  }
  return outcome;
}

void EngineLoop::take_token(Sequence& sequence, size_t row, int32_t token,
                            std::optional<TokenLogprob>& logprob, Clock::time_point now) {
  GenerateRequest& request = sequence.request;
  const std::vector<int32_t>& stop_ids = request.sampling.stop_token_ids;  // sorted
  const bool is_stop = std::find(sequence.eos.begin(), sequence.eos.end(), token) != sequence.eos.end() ||
                       std::binary_search(stop_ids.begin(), stop_ids.end(), token);
  bool is_stopped = false;
  try {
    if (sequence.mask != nullptr) {
      HADAL_CHECK(sequence.mask->allows(row, token), "the grammar does not allow token {}, which was sampled",
                  token);
    }
    if (request.stop) watchdog_.set_request(sequence.id);
    if (request.stop && !is_stop) is_stopped = request.stop->on_token(token);
  } catch (const std::bad_alloc&) {
    return finish_aborted(sequence, AbortReason::kMemory, kNoMemory);
  } catch (const std::exception& error) {
    log_error("request failed: id={} error=\"{}\"", sequence.id, error.what());
    return finish_aborted(sequence, AbortReason::kFault, error.what());
  }
  sequence.tokens.push_back(token);
  sequence.pending.token_ids.push_back(token);
  if (logprob) sequence.pending.logprobs.push_back(std::move(*logprob));
  if (sequence.num_generated() == 1) sequence.first_token = now;
  ++counters_.generation_tokens;

  if (is_stop) {
    sequence.pending.matched_token = token;
    finish(sequence, FinishReason::kStopToken);
  } else if (is_stopped) {
    finish(sequence, FinishReason::kStopCondition);
  } else if (sequence.num_generated() >= request.sampling.max_new_tokens) {
    finish(sequence, FinishReason::kLength);
  }
}

// Fails the step's requests; the engine continues.
void EngineLoop::fail_step(const StepRecord& record, const std::string& error) {
  log_error("step failed: step={} error=\"{}\"", record.plan.step, error);
  for (const RequestId id : scheduler_.fail(record.plan)) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end() || found->second->finished) continue;
    finish_aborted(*found->second, AbortReason::kFault, error);
  }
}

}  // namespace hadal
