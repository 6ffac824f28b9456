#include "engine/loop/engine_loop.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/seconds.h"

namespace hadal {
namespace {

constexpr size_t kAbortsPerTurn = 1024;

constexpr double kUtilizationHoldsS = 1.0;
constexpr double kThroughputHoldsS = 30.0;
SchedulerOptions scheduler_options(const EngineOptions& options, const ModelConfig& config,
                                   const StepExecutor& executor) {
  // If generated tokens are not cached, each token of a prompt must always use the same path.
  const bool absorbs = executor.takes_absorbed_prompts() && options.cache_generated_tokens;
  return {.num_pages = options.max_total_tokens / kPageSize,
          .max_running_requests = options.max_running_requests,
          .chunked_prefill_size = options.chunked_prefill_size,
          .max_prefill_tokens = options.max_prefill_tokens,
          .policy = options.schedule_policy,
          .low_priority_values_first = options.low_priority_values_first,
          .conservativeness = options.schedule_conservativeness,
          .eviction = options.eviction_policy,
          .enable_radix_cache = options.enable_radix_cache,
          .cache_generated_tokens = options.cache_generated_tokens,
          .prompt_costs = options.max_prefill_ms > 0 ? prompt_costs(config, absorbs) : PromptCosts(),
          .max_scored_tokens = kMaxScoredRows,
          .max_width = options.speculation_width};
}

}  // namespace

EngineLoop::EngineLoop(std::unique_ptr<StepExecutor> executor, const ModelConfig& config,
                       const EngineOptions& options, std::unique_ptr<PlanRecorder> recorder, Inbox& inbox,
                       Gate& gate)
    : options_(options),
      vocab_size_(config.vocab_size),
      inbox_(inbox),
      gate_(gate),
      executor_(std::move(executor)),
      recorder_(std::move(recorder)),
      scheduler_(scheduler_options(options, config, *executor_)),
      staging_(sequences_, options.max_running_requests, options.speculation_width > 0),
      log_(options.decode_log_interval, options.max_total_tokens, options.speculation_width > 0,
           !options.simulated_acceptance.empty()),
      pace_(static_cast<double>(options.max_prefill_ms) / 1000),
      watchdog_(options.watchdog_timeout_s, options.on_stall),
      mask_workers_([&inbox] { inbox.wake(); }) {
  if (options.speculation_adapts && options.speculation_width > 0)
    policy_.emplace(options.speculation_width,
                    StepCosts(config, options.kv_layout, executor_->rates(), options.draft_shape),
                    options.draft_shape);
  if (recorder_) scheduler_.record_to(recorder_.get());
  counters_.max_total_tokens = options.max_total_tokens;
  counters_.acceptance_is_simulated = !options.simulated_acceptance.empty();
  if (counters_.acceptance_is_simulated) {
    log_warning("speculation is simulated chances={} reason=\"a benchmark wants it: texts have no meaning\"",
                fmt::join(options.simulated_acceptance, ","));
  }
  publish_stats();
}

void EngineLoop::run() {
  const MemoryReserve::Scope reserve;  // what this thread needs belongs to all requests
  bool running = true;
  while (running) {
    MemoryReserve::refill();
    enter("inbox");
    running = take_commands();
    try {
      if (!running) abort_all(AbortReason::kShutdown, "the engine was stopped");
      const bool worked = turn();
      deliver();
      if (running && !worked && next_abort_ == commands_.size()) rest();
    } catch (const std::bad_alloc&) {
      begin_anew();
    } catch (const std::exception& error) {
      die(error.what());
      deliver_last();
    }
  }
}

// One client may abort tens of thousands of requests at once, and other requests must not wait for all of
// that. An abort concerns only a request that was submitted before, so later submits need not wait for it,
// but calls do. Keeping this order allocates nothing.
bool EngineLoop::take_commands() {
  bool running = true;
  if (next_abort_ == commands_.size()) {
    commands_.clear();
    next_abort_ = next_command_ = 0;
    running = inbox_.take(commands_);
  }
  size_t num_aborts = 0;
  // Returns false if an abort must wait for the next turn.
  const auto abort_up_to_here = [&] {
    for (; next_abort_ < next_command_; ++next_abort_) {
      Command& command = commands_[next_abort_];
      if (command.abort == 0) continue;
      if (num_aborts >= kAbortsPerTurn && running) return false;
      ++num_aborts;
      handle(command);
    }
    return true;
  };
  while (next_command_ < commands_.size()) {
    Command& command = commands_[next_command_];
    if (!abort_up_to_here() && command.call) return running;
    ++next_command_;
    if (command.abort == 0) handle(command);
  }
  abort_up_to_here();
  return running;
}

// Runs one step of work. In the overlapped loop the previous step is collected while this one runs.
bool EngineLoop::turn() {
  if (dead_) return false;
  release_ready();
  std::optional<StepRecord> previous = std::exchange(in_flight_, std::nullopt);
  std::optional<StepRecord> launched = plan_and_launch();
  if (options_.overlap_schedule) {
    if (previous) collect(*previous);
    in_flight_ = std::move(launched);
    if (in_flight_ && !in_flight_->constrained.empty()) {
      deliver();  // results of the previous step, because set_masks may have to wait
      set_masks(*in_flight_);
    }
    if (previous || in_flight_) return true;
  } else if (launched) {
    set_masks(*launched);
    collect(*launched);
    return true;
  }
  HADAL_CHECK(paused_ || scheduler_.idle() || !awaiting_masks_.empty(),
              "{} requests are waiting, but there is no step to run", num_live_);
  return false;
}

void EngineLoop::handle(Command& command) {
  while (true) {
    try {
      if (command.submit) {
        add(command.submit);
      } else if (command.call) {
        command.call();
      } else {
        abort(command.abort);
      }
      return;
    } catch (const std::bad_alloc&) {
      begin_anew();
      if (!command.submit || dead_) return;  // the loop owns the sequence, or the call has failed
    } catch (const std::exception& error) {
      return die(error.what());
    }
  }
}

void EngineLoop::add(std::unique_ptr<Sequence>& owned) {
  Sequence& sequence = *owned;
  delivery_.attach(sequence);
  std::unique_ptr<Sequence>* place = nullptr;
  try {
    place = &sequences_[sequence.id];
  } catch (...) {
    delivery_.detach(sequence);
    throw;
  }
  *place = std::move(owned);
  ++num_live_;
  ++counters_.num_requests;
  if (sequence.request.constraint != nullptr) {
    sequence.mask = std::make_shared<MaskTask>(std::move(sequence.request.constraint), vocab_size_,
                                               sequence.request.client);
  }
  if (dead_) return finish_aborted(sequence, AbortReason::kFault, died_of_);
  const LogprobOptions& logprobs = sequence.request.logprobs;
  const bool scores_prompt = logprobs.enabled && logprobs.start >= 0;
  sequence.next_scored = scores_prompt ? logprobs.start : sequence.prompt_len;
  scheduler_.add({.id = sequence.id,
                  .prompt = sequence.tokens.prompt(),
                  .max_new_tokens = sequence.request.sampling.max_new_tokens,
                  .max_cached_tokens = scores_prompt ? logprobs.start : sequence.prompt_len - 1,
                  .scores_prompt = scores_prompt,
                  .priority = sequence.request.priority,
                  .client = sequence.request.client,
                  .salt = sequence.request.cache_salt});
}

void EngineLoop::abort(RequestId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second->finished) return;
  if (!dead_) scheduler_.abort(id);
  finish_aborted(*found->second, AbortReason::kClient, "aborted");
}

int64_t EngineLoop::abort_all(AbortReason reason, const std::string& why) {
  int64_t count = 0;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->finished) continue;
    if (!dead_) scheduler_.abort(id);
    finish_aborted(*sequence, reason, why);
    ++count;
  }
  publish_stats();
  return count;
}

Result<void> EngineLoop::flush_cache() {
  if (num_live_ > 0) {
    return make_status(StatusCode::kResourceExhausted,
                       "{} requests are queued or running; the cache can be flushed only when there are none",
                       num_live_);
  }
  if (dead_) return make_status(StatusCode::kInternal, "{}", died_of_);
  // Only rows of requests that have ended can be in flight.
  if (std::optional<StepRecord> last = std::exchange(in_flight_, std::nullopt)) collect(*last);
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

Result<StepTrace> EngineLoop::stop_profile() {
  if (!trace_.has_trace()) return invalid_argument("no profile was started");
  const auto now = Clock::now();
  for (const auto& [id, sequence] : sequences_) {
    if (!sequence->finished) trace_.request(*sequence, now);
  }
  return trace_.take();
}

// A step is assumed to have as many prompt tokens as the one before.
SpeculationPolicy::Choice EngineLoop::choose_width() const {
  const SchedulerStats stats = scheduler_.stats();
  const int64_t widest = widest_step(options_.speculation_width, stats.num_running);
  if (!policy_) return {.width = widest};
  return policy_->choose({.num_requests = stats.num_running,
                          .num_keys = stats.num_used_tokens,
                          .num_prompt_tokens = num_prompt_tokens_},
                         widest);
}

std::optional<StepRecord> EngineLoop::plan_and_launch() {
  if (paused_) return std::nullopt;
  enter("plan");
  const auto plan_begin = Clock::now();
  StepRecord record;
  const SpeculationPolicy::Choice choice = choose_width();
  record.plan = scheduler_.plan(pace_.max_cost(), choice.width);
  if (record.plan.empty()) return std::nullopt;
  if (policy_ && record.plan.num_decode_tokens > 0) policy_->planned(choice);
  num_prompt_tokens_ = record.plan.num_prefill_tokens;
  const auto stage_begin = Clock::now();
  log_.planned(record.plan, scheduler_.stats());

  enter("stage");
  StagedStep staged = staging_.stage(record);
  for (Sequence* sequence : record.admitted) {
    sequence->started = plan_begin;
    sequence->cached_tokens = scheduler_.cached_tokens(sequence->id);
    sequence->admitted = true;
    gate_.admitted(sequence->request.client);
    if (sequence->mask != nullptr) mask_workers_.post(sequence->mask, {});
  }
  const auto launch_begin = Clock::now();
  enter("launch");
  const int64_t num_tokens = staged.batch.num_tokens();
  HADAL_CHECK_LT(num_launched_, 2);
  executor_->launch(std::move(staged));
  launched_[num_launched_++] = {.step = record.plan.step, .num_constrained = record.constrained.size()};
  record.launched = launch_begin;
  if (trace_.active()) {
    trace_.span("plan", StepTrace::Track::kEngine, record.plan.step, plan_begin, stage_begin);
    trace_.span("stage", StepTrace::Track::kEngine, record.plan.step, stage_begin, launch_begin, num_tokens);
  }
  return record;
}

void EngineLoop::finish(Sequence& sequence, FinishReason reason, std::string abort_text) {
  const auto now = Clock::now();
  const bool started = sequence.started != Clock::time_point{};
  const bool has_first = sequence.first_token != Clock::time_point{};
  sequence.pending.finish_reason = reason;
  sequence.pending.abort_text = std::move(abort_text);
  sequence.pending.timings = {
      .queue_s = seconds_between(sequence.submitted, started ? sequence.started : now),
      .prefill_s = started ? seconds_between(sequence.started, has_first ? sequence.first_token : now) : 0.0,
      .decode_s = has_first ? seconds_between(sequence.first_token, now) : 0.0};
  if (finished_.size() == finished_.capacity()) finished_.reserve(2 * finished_.size() + 16);
  if (sequence.deliverable) delivery_.push(sequence);
  // Nothing has failed, so the request has ended.
  finished_.push_back(&sequence);
  sequence.finished = true;
  --num_live_;
  if (reason == FinishReason::kAbort) ++counters_.num_aborted;
  if (sequence.mask != nullptr) mask_workers_.drop(sequence.mask);
  if (sequence.awaits_mask) std::erase(awaiting_masks_, &sequence);
  trace_.request(sequence, now);
}

void EngineLoop::finish_aborted(Sequence& sequence, AbortReason reason, std::string why) {
  sequence.pending.abort_reason = reason;
  finish(sequence, FinishReason::kAbort, std::move(why));
}

void EngineLoop::fail(Sequence& sequence, const std::string& why, AbortReason reason) {
  log_error("request failed: id={} error=\"{}\"", sequence.id, why);
  if (!dead_) scheduler_.abort(sequence.id);
  finish_aborted(sequence, reason, why);
}

void EngineLoop::forget_oldest() {
  launched_[0] = launched_[1];
  --num_launched_;
}

// This is the last phase of a turn. Counters come first, so that the recipients of final chunks see them.
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
  if (trace_.active() && in_flight_) {
    trace_.span("deliver", StepTrace::Track::kEngine, in_flight_->plan.step, begin, Clock::now());
  }
  retire_finished();
}

void EngineLoop::retire_finished() {
  for (Sequence* sequence : finished_) {
    delivery_.detach(*sequence);
    gate_.left(sequence->admitted, sequence->request.client);
    const auto found = sequences_.find(sequence->id);
    if (in_flight_ && sequence->last_step >= in_flight_->plan.step) {
      buried_.push_back(std::move(found->second));
    }
    sequences_.erase(found);
  }
  finished_.clear();
}

// Destroys the sequences whose last step has ended, because nothing refers to them any more.
void EngineLoop::bury(int64_t collected_step) {
  std::erase_if(buried_, [&](const auto& sequence) { return sequence->last_step <= collected_step; });
}

// Sleeps until there is a command, or a mask that was awaited.
void EngineLoop::rest() {
  if (!awaiting_masks_.empty() && !paused_) {
    enter("masks");
    watchdog_.set_request(awaiting_masks_.front()->id);
    inbox_.wait();
    watchdog_.set_request(0);
    return;
  }
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
    if (idle_since_ != Clock::time_point{}) idle_s = seconds_between(idle_since_, Clock::now());
  }
  // The statistics of the last steps remain valid for a while.
  if (idle_s > kUtilizationHoldsS) stats.utilization = 0.0;
  if (idle_s > kThroughputHoldsS) stats.gen_throughput = 0.0;
  return stats;
}

}  // namespace hadal
