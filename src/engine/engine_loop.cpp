#include "engine/engine_loop.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace hadal {
namespace {

constexpr double kUtilizationHoldsS = 1.0;
constexpr double kThroughputHoldsS = 30.0;
constexpr const char* kNanLogits = "the model's logits hold NaN";

SchedulerOptions scheduler_options(const EngineOptions& options) {
  return {.num_pages = options.max_total_tokens / kPageSize,
          .max_running_requests = options.max_running_requests,
          .chunked_prefill_size = options.chunked_prefill_size,
          .max_prefill_tokens = options.max_prefill_tokens,
          .policy = options.schedule_policy,
          .low_priority_values_first = options.low_priority_values_first,
          .conservativeness = options.schedule_conservativeness,
          .eviction = options.eviction_policy,
          .enable_radix_cache = options.enable_radix_cache,
          .cache_generated_tokens = options.cache_generated_tokens};
}

double seconds(Sequence::Clock::time_point from, Sequence::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

EngineLoop::EngineLoop(std::unique_ptr<StepExecutor> executor, int64_t vocab_size,
                       const EngineOptions& options, std::unique_ptr<PlanRecorder> recorder, Inbox& inbox,
                       Gate& gate)
    : options_(options),
      vocab_size_(vocab_size),
      inbox_(inbox),
      gate_(gate),
      executor_(std::move(executor)),
      recorder_(std::move(recorder)),
      scheduler_(scheduler_options(options)),
      staging_(sequences_, options.max_running_requests),
      log_(options.decode_log_interval, options.max_total_tokens),
      watchdog_(options.watchdog_timeout_s, options.on_stall) {
  if (recorder_) scheduler_.record_to(recorder_.get());
  counters_.max_total_tokens = options.max_total_tokens;
  publish_stats();
}

void EngineLoop::run() {
  bool running = true;
  while (running) {
    enter("inbox");
    running = inbox_.take(commands_);
    for (Command& command : commands_) handle(command);
    commands_.clear();
    bool worked = false;
    try {
      if (!running) abort_all("the engine was stopped");
      worked = turn();
    } catch (const std::exception& error) {
      die(error.what());
    }
    deliver();
    if (worked || !running) continue;
    rest();
  }
}

// One step of work. In the overlapped loop the step before it is collected while it runs.
bool EngineLoop::turn() {
  if (dead_) return false;
  std::optional<StepRecord> previous = std::exchange(under_way_, std::nullopt);
  std::optional<StepRecord> launched = plan_and_launch();
  if (options_.overlap_schedule) {
    if (previous) collect(*previous);
    if (launched) set_masks(*launched);
    under_way_ = std::move(launched);
    if (previous || under_way_) return true;
  } else if (launched) {
    set_masks(*launched);
    collect(*launched);
    return true;
  }
  HADAL_CHECK(paused_ || scheduler_.idle(), "{} requests wait, but there is no step to run", num_live_);
  return false;
}

void EngineLoop::handle(Command& command) {
  try {
    if (command.submit) {
      add(std::move(command.submit));
    } else if (command.call) {
      command.call();
    } else {
      abort(command.abort);
    }
  } catch (const std::exception& error) {
    die(error.what());
  }
}

void EngineLoop::add(std::unique_ptr<Sequence> owned) {
  Sequence& sequence = *owned;
  sequences_.emplace(sequence.id, std::move(owned));
  ++num_live_;
  ++counters_.num_requests;
  delivery_.attach(sequence);
  if (dead_) return finish(sequence, FinishReason::kAbort, died_of_);
  const LogprobOptions& logprobs = sequence.request.logprobs;
  const bool scores_prompt = logprobs.enabled && logprobs.start >= 0;
  sequence.next_scored = scores_prompt ? logprobs.start : sequence.prompt_len;
  scheduler_.add({.id = sequence.id,
                  .prompt = sequence.tokens,
                  .max_new_tokens = sequence.request.sampling.max_new_tokens,
                  .max_cached_tokens = scores_prompt ? logprobs.start : sequence.prompt_len - 1,
                  .priority = sequence.request.priority});
}

void EngineLoop::abort(RequestId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second->finished) return;
  if (!dead_) scheduler_.abort(id);
  finish(*found->second, FinishReason::kAbort, "aborted");
}

int64_t EngineLoop::abort_all(const std::string& why) {
  int64_t count = 0;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->finished) continue;
    if (!dead_) scheduler_.abort(id);
    finish(*sequence, FinishReason::kAbort, why);
    ++count;
  }
  publish_stats();
  return count;
}

Result<void> EngineLoop::flush_cache() {
  if (num_live_ > 0) {
    return make_status(StatusCode::kResourceExhausted,
                       "{} requests are queued or running; the cache is flushed when there are none",
                       num_live_);
  }
  if (dead_) return make_status(StatusCode::kInternal, "{}", died_of_);
  // All that may be under way are rows of requests that have ended.
  if (std::optional<StepRecord> last = std::exchange(under_way_, std::nullopt)) collect(*last);
  scheduler_.flush_cache();
  publish_stats();
  return {};
}

Result<void> EngineLoop::start_profile(int64_t num_steps) {
  if (num_steps < 0) return invalid_argument("num_steps is {}; allowed: 0 or more", num_steps);
  if (trace_.active()) return invalid_argument("a profile is being collected; stop it first");
  trace_.start(num_steps);
  return {};
}

Result<std::string> EngineLoop::stop_profile() {
  if (!trace_.has_trace()) return invalid_argument("no profile was started");
  const auto now = Clock::now();
  for (const auto& [id, sequence] : sequences_) {
    if (!sequence->finished) trace_.request(*sequence, now);
  }
  return trace_.take();
}

std::optional<StepRecord> EngineLoop::plan_and_launch() {
  if (paused_) return std::nullopt;
  enter("plan");
  const auto plan_begin = Clock::now();
  StepRecord record;
  record.plan = scheduler_.plan();
  if (record.plan.empty()) return std::nullopt;
  const auto stage_begin = Clock::now();
  log_.planned(record.plan, scheduler_.stats());

  enter("stage");
  StagedStep staged = staging_.stage(record);
  for (Sequence* sequence : record.admitted) {
    sequence->started = plan_begin;
    sequence->cached_tokens = scheduler_.cached_tokens(sequence->id);
    gate_.admitted();
  }
  const auto launch_begin = Clock::now();
  enter("launch");
  const int64_t num_tokens = staged.batch.num_tokens();
  executor_->launch(std::move(staged));
  record.launched = launch_begin;
  if (trace_.active()) {
    trace_.span("plan", StepTrace::Track::kEngine, record.plan.step, plan_begin, stage_begin);
    trace_.span("stage", StepTrace::Track::kEngine, record.plan.step, stage_begin, launch_begin, num_tokens);
  }
  return record;
}

// The masks of the step's constrained rows. Every token before them is known by now.
void EngineLoop::set_masks(const StepRecord& record) {
  if (record.constrained.empty()) return;
  enter("masks");
  const auto begin = Clock::now();
  const size_t words = (static_cast<size_t>(vocab_size_) + 31) / 32;
  std::vector<uint32_t> masks(record.constrained.size() * words);
  for (size_t i = 0; i < record.constrained.size(); ++i) {
    Sequence& sequence = *record.constrained[i];
    const std::span<uint32_t> mask = std::span(masks).subspan(i * words, words);
    if (!sequence.finished) {
      watchdog_.set_request(sequence.id);
      try {
        sequence.request.constraint->fill_mask(mask);
      } catch (const std::exception& error) {
        fail(sequence, error.what());
      }
    }
    if (sequence.finished) std::fill(mask.begin(), mask.end(), ~uint32_t{0});  // nobody looks at this row
  }
  watchdog_.set_request(0);
  executor_->set_masks(record.plan.step, std::move(masks));
  trace_.span("masks", StepTrace::Track::kEngine, record.plan.step, begin, Clock::now());
}

void EngineLoop::collect(StepRecord& record) {
  if (watchdog_.enabled()) {
    watched_ids_.clear();
    for (const WorkItem& item : record.plan.ranks[0].items) watched_ids_.push_back(item.request_id);
    watchdog_.set_step(record.plan.step, watched_ids_);
  }
  enter("run");
  StepOutput output = executor_->wait();
  enter("collect");
  const auto now = Clock::now();
  HADAL_CHECK_EQ(output.step, record.plan.step);
  if (!output.error.empty()) {
    fail_step(record, output.error);
    bury(record.plan.step);
    return;
  }
  HADAL_CHECK_EQ(output.samples.size(), record.samples.size());
  HADAL_CHECK_EQ(output.prompt_scores.size(), record.scores.size());
  const int64_t generated_before = counters_.generation_tokens;
  take_scores(record, output);
  outcomes_.clear();
  for (size_t i = 0; i < record.samples.size(); ++i) {
    outcomes_.push_back(take_token(*record.samples[i], output.samples[i], now));
  }
  watchdog_.set_request(0);
  scheduler_.complete(record.plan, outcomes_);
  for (Sequence* sequence : record.ended_prompts) {
    if (sequence->finished) continue;
    sequence->first_token = now;
    if (sequence->score_is_nan) {
      finish(*sequence, FinishReason::kAbort, kNanLogits);
    } else {
      finish(*sequence, FinishReason::kLength);
    }
  }
  // NaN among a prompt's scores: its request alone is at fault, and the scheduler knows it still.
  for (Sequence* sequence : record.scores) {
    if (!sequence->finished && sequence->score_is_nan) fail(*sequence, kNanLogits);
  }
  ++counters_.num_steps;
  log_.collected(record.plan, counters_.generation_tokens - generated_before, output.run_s,
                 scheduler_.stats(), now);
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
    sequence.pending.prompt_logprobs.push_back(std::move(score));
  }
}

// What a sampled token means for its request.
ItemOutcome EngineLoop::take_token(Sequence& sequence, SampledToken& sampled, Clock::time_point now) {
  ItemOutcome outcome{.request_id = sequence.id, .token = sampled.token, .finished = true};
  if (sequence.finished) return outcome;  // ended before this step did
  GenerateRequest& request = sequence.request;
  const auto fault = [&](const std::string& why) {
    log_error("request failed: id={} error=\"{}\"", sequence.id, why);
    finish(sequence, FinishReason::kAbort, why);
    return outcome;
  };
  if (!sampled.error.empty()) return fault(sampled.error);
  if (sequence.score_is_nan) return fault(kNanLogits);

  const int32_t token = sampled.token;
  const auto ends = [token](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  const bool is_stop = ends(sequence.eos) || ends(request.sampling.stop_token_ids);
  std::optional<std::string> matched;
  try {
    if (request.constraint || request.stop) watchdog_.set_request(sequence.id);
    if (request.constraint) {
      HADAL_CHECK(request.constraint->accept_token(token), "the grammar refuses token {} it allowed", token);
    }
    if (request.stop && !is_stop) matched = request.stop->on_token(token);
  } catch (const std::exception& error) {
    return fault(error.what());
  }
  sequence.tokens.push_back(token);
  sequence.pending.token_ids.push_back(token);
  if (sampled.logprob) sequence.pending.logprobs.push_back(std::move(*sampled.logprob));
  if (sequence.num_generated() == 1) sequence.first_token = now;
  ++counters_.generation_tokens;

  if (is_stop) {
    sequence.pending.matched_token = token;
    finish(sequence, FinishReason::kStopToken);
  } else if (matched) {
    finish(sequence, FinishReason::kStopCondition, std::move(*matched));
  } else if (sequence.num_generated() >= request.sampling.max_new_tokens) {
    finish(sequence, FinishReason::kLength);
  } else {
    outcome.finished = false;
    if (static_cast<int64_t>(sequence.pending.token_ids.size()) >= request.stream_interval) {
      delivery_.push(sequence);
    }
  }
  return outcome;
}

// The step's requests fail, the engine goes on.
void EngineLoop::fail_step(const StepRecord& record, const std::string& error) {
  log_error("step failed: step={} error=\"{}\"", record.plan.step, error);
  for (const RequestId id : scheduler_.fail(record.plan)) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end() || found->second->finished) continue;
    finish(*found->second, FinishReason::kAbort, error);
  }
}

void EngineLoop::finish(Sequence& sequence, FinishReason reason, std::string matched) {
  const auto now = Clock::now();
  const bool started = sequence.started != Clock::time_point{};
  const bool has_first = sequence.first_token != Clock::time_point{};
  sequence.finished = true;
  --num_live_;
  if (reason == FinishReason::kAbort) ++counters_.num_aborted;
  sequence.pending.finish_reason = reason;
  sequence.pending.matched = std::move(matched);
  sequence.pending.timings = {
      .queue_s = seconds(sequence.submitted, started ? sequence.started : now),
      .prefill_s = started ? seconds(sequence.started, has_first ? sequence.first_token : now) : 0.0,
      .decode_s = has_first ? seconds(sequence.first_token, now) : 0.0};
  if (sequence.deliverable) delivery_.push(sequence);
  finished_.push_back(&sequence);
  trace_.request(sequence, now);
}

void EngineLoop::fail(Sequence& sequence, const std::string& why) {
  log_error("request failed: id={} error=\"{}\"", sequence.id, why);
  if (!dead_) scheduler_.abort(sequence.id);
  finish(sequence, FinishReason::kAbort, why);
}

void EngineLoop::die(const std::string& why) {
  log_error("engine failed: error=\"{}\"", why);
  dead_ = true;
  died_of_ = "the engine has failed: " + why;
  gate_.close(make_status(StatusCode::kInternal, "{}", died_of_));
  abort_all(died_of_);
}

// Last of a turn: counters first, so that whoever has a final chunk sees them.
void EngineLoop::deliver() {
  enter("deliver");
  publish_stats();
  const auto begin = Clock::now();
  delivery_.deliver([&](Sequence& sequence, const char* what) {
    sequence.deliverable = false;
    if (sequence.finished) {
      log_error("final chunk lost: id={} error=\"{}\"", sequence.id, what);
    } else {
      fail(sequence, what);
    }
  });
  if (trace_.active() && under_way_) {
    trace_.span("deliver", StepTrace::Track::kEngine, under_way_->plan.step, begin, Clock::now());
  }
  retire_finished();
}

void EngineLoop::retire_finished() {
  for (Sequence* sequence : finished_) {
    delivery_.detach(*sequence);
    gate_.left(sequence->admitted);
    const auto found = sequences_.find(sequence->id);
    if (under_way_ && sequence->last_step >= under_way_->plan.step) {
      buried_.push_back(std::move(found->second));
    }
    sequences_.erase(found);
  }
  finished_.clear();
}

// Nothing names the sequences any more whose last step is over.
void EngineLoop::bury(int64_t collected_step) {
  std::erase_if(buried_, [&](const auto& sequence) { return sequence->last_step <= collected_step; });
}

// Sleeps until somebody wants something.
void EngineLoop::rest() {
  const auto now = Clock::now();
  log_.idle(now);
  publish_stats();
  {
    const std::lock_guard lock(stats_mutex_);
    idle_since_ = now;
  }
  watchdog_.idle();
  inbox_.wait();
  const std::lock_guard lock(stats_mutex_);
  idle_since_ = {};
}

void EngineLoop::publish_stats() {
  counters_.scheduler = scheduler_.stats();
  counters_.gen_throughput = log_.gen_throughput();
  counters_.utilization = log_.utilization();
  const std::lock_guard lock(stats_mutex_);
  stats_ = counters_;
}

EngineStats EngineLoop::stats() const {
  EngineStats stats;
  double idle_s = 0.0;
  {
    const std::lock_guard lock(stats_mutex_);
    stats = stats_;
    if (idle_since_ != Clock::time_point{}) idle_s = seconds(idle_since_, Clock::now());
  }
  // The figures of the last steps hold for a while.
  if (idle_s > kUtilizationHoldsS) stats.utilization = 0.0;
  if (idle_s > kThroughputHoldsS) stats.gen_throughput = 0.0;
  return stats;
}

}  // namespace hadal
