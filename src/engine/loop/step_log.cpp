#include "engine/loop/step_log.h"

#include <algorithm>

#include "base/log.h"
#include "base/seconds.h"

namespace hadal {
namespace {

constexpr int64_t kDefaultInterval = 40;
constexpr double kWindowS = 1.0;  // utilisation is measured over this time

}  // namespace

StepLog::StepLog(int64_t interval, int64_t max_total_tokens, bool speculates, bool simulates)
    : lines_(interval > 0),
      interval_(interval > 0 ? interval : kDefaultInterval),
      speculates_(speculates),
      simulates_(simulates),
      max_total_tokens_(static_cast<double>(max_total_tokens)) {}

double StepLog::usage(const SchedulerStats& stats) const {
  return static_cast<double>(stats.num_used_tokens) / max_total_tokens_;
}

void StepLog::planned(const BatchPlan& plan, const SchedulerStats& stats) {
  if (idle_) {  // an idle gap is part of no interval
    idle_ = false;
    interval_begin_ = window_begin_ = Clock::now();
  }
  if (!lines_ || plan.num_prefill_tokens == 0) return;
  log_info(
      "Prefill batch. #new-seq: {}, #new-token: {}, #cached-token: {}, token usage: {:.2f}, "
      "#running-req: {}, #queue-req: {}",
      plan.num_new_requests, plan.num_prefill_tokens, plan.num_cached_tokens, usage(stats),
      stats.num_running - plan.num_new_requests, stats.num_queued);
}

void StepLog::collected(const BatchPlan& plan, int64_t num_generated, const SpeculationCounts& speculation,
                        const StepOutput& output, const SchedulerStats& stats, Clock::time_point now) {
  tokens_ += num_generated;
  speculation_ += speculation;
  busy_s_ += output.run_s;
  if (seconds_between(window_begin_, now) >= kWindowS) close_window(now);
  if (plan.num_decode_tokens == 0 || ++decode_steps_ < interval_) return;
  const std::string accepted = speculates_
                                   ? fmt::format("accept len: {:.2f}, accept rate: {:.2f}, ",
                                                 speculation_.accept_length(), speculation_.accept_rate())
                                   : std::string();
  const std::string width = speculates_ ? fmt::format(", verify width: {:.2f}{}", speculation_.mean_width(),
                                                      simulates_ ? ", acceptance: simulated" : "")
                                        : std::string();
  close_interval(now);
  if (!lines_) return;
  log_info(
      "Decode batch. #running-req: {}, #token: {}, token usage: {:.2f}, {}cuda graph: {}, gen throughput "
      "(token/s): {:.2f}, #queue-req: {}{}",
      stats.num_running, stats.num_used_tokens, usage(stats), accepted, output.graphed ? "True" : "False",
      gen_throughput_, stats.num_queued, width);
}

void StepLog::idle(Clock::time_point now) {
  if (idle_) return;
  idle_ = true;
  if (tokens_ > 0) close_interval(now);
  close_window(now);
}

void StepLog::close_interval(Clock::time_point now) {
  const double elapsed = seconds_between(interval_begin_, now);
  gen_throughput_ = elapsed > 0 ? static_cast<double>(tokens_) / elapsed : 0.0;
  interval_begin_ = now;
  decode_steps_ = 0;
  tokens_ = 0;
  speculation_ = {};
}

void StepLog::close_window(Clock::time_point now) {
  const double elapsed = seconds_between(window_begin_, now);
  utilization_ = elapsed > 0 ? std::min(1.0, busy_s_ / elapsed) : 0.0;
  window_begin_ = now;
  busy_s_ = 0.0;
}

}  // namespace hadal
