// Keeps statistics of the running engine: throughput and utilisation for metrics, and the two batch lines
// that users of SGLang read and parse. Only the engine thread uses it.
#pragma once

#include <chrono>
#include <cstdint>

#include "engine/step_executor.h"
#include "scheduler/batch_plan.h"
#include "scheduler/scheduler.h"

namespace hadal {

class StepLog {
 public:
  using Clock = std::chrono::steady_clock;

  // `interval` is the number of decode steps between two "Decode batch" lines; with 0 no lines are written,
  // but the statistics are kept. With `speculates` the lines say how many tokens were accepted, and with
  // `simulates` that the acceptance is simulated.
  StepLog(int64_t interval, int64_t max_total_tokens, bool speculates, bool simulates);

  // Records that a plan was made; logs a "Prefill batch" line if it has prompt tokens.
  void planned(const BatchPlan& plan, const SchedulerStats& stats);
  // Records that a step has ended: how many tokens it generated, what it verified, how long it ran, and
  // whether as a graph.
  void collected(const BatchPlan& plan, int64_t num_generated, const SpeculationCounts& speculation,
                 const StepOutput& output, const SchedulerStats& stats, Clock::time_point now);
  // Records that there is nothing left to do.
  void idle(Clock::time_point now);

  double gen_throughput() const { return gen_throughput_; }
  double utilization() const { return utilization_; }

 private:
  void close_interval(Clock::time_point now);
  void close_window(Clock::time_point now);
  double usage(const SchedulerStats& stats) const;

  const bool lines_;
  const int64_t interval_;
  const bool speculates_, simulates_;
  const double max_total_tokens_;
  bool idle_ = true;
  Clock::time_point interval_begin_, window_begin_;
  int64_t decode_steps_ = 0;
  int64_t tokens_ = 0;             // generated in the interval
  SpeculationCounts speculation_;  // in the interval
  double busy_s_ = 0.0;            // in the window
  double gen_throughput_ = 0.0;
  double utilization_ = 0.0;
};

}  // namespace hadal
