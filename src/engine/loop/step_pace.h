// StepPace measures how long steps take, and says how many prompt tokens a step may compute while a request
// of another client generates, because that client's next token comes only when the step ends. It is plain
// arithmetic; the engine thread uses it.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "scheduler/scheduler.h"

namespace hadal {

// Estimates from the model's sizes alone what a prompt token costs beyond the matrix products of one row: its
// attention on both paths (only on the un-absorbed one if `absorbs` is false), and its logits where they are
// wanted. A model without layers (tests) has free attention.
PromptCosts prompt_costs(const ModelConfig& config, bool absorbs);

class StepPace {
 public:
  // `max_prompt_s` is the time in seconds that such prompt tokens may add to a step; 0: no limit. If a step
  // without prompt tokens takes longer than that, the prompt tokens may add as much time as such a step
  // takes.
  explicit StepPace(double max_prompt_s) : max_prompt_s_(max_prompt_s) {}

  // Records that a step ran for `run_s` seconds; `prompt_cost` is BatchPlan::prompt_cost.
  void observe(int64_t prompt_cost, double run_s);

  // Returns the limit of the next Scheduler::plan(), in rows.
  int64_t max_cost() const;
  // Returns how long the latest step without prompt tokens ran, in seconds; 0: there was none.
  double decode_step_s() const { return decode_step_s_; }

  // This is the limit before any prompt has been measured.
  static constexpr int64_t kFirstCost = 128;

 private:
  const double max_prompt_s_;
  double decode_step_s_ = 0.0;
  double row_s_ = 0.0;  // seconds for each row of cost; 0: not known
};

}  // namespace hadal
