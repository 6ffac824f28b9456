// Decides how many rows a step has for each request that speculates (the width of the step). A step of width
// w verifies the first w − 1 drafts of the tree (kernels/params/draft_tree.h), and may sample one token more
// than it accepts. The policy chooses the width with the most expected tokens for the estimated time. It is
// arithmetic without a clock: its inputs are the load of the next step and the outcomes of earlier ones, in
// their order. So the same requests get the same widths. The engine thread uses it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/step_executor.h"
#include "kernels/params/draft_tree.h"
#include "kernels/params/kv_layout.h"
#include "model/config.h"

namespace hadal {

// A step verifies at most this many rows, whatever the width. With more rows, memory for logits grows but the
// tokens per second do not.
inline constexpr int64_t kMaxVerifiedRows = 1024;

// Returns the largest width of the next step: max_width (0: no speculation), or less if the running requests
// would otherwise have more than kMaxVerifiedRows rows together; at least 1.
int64_t widest_step(int64_t max_width, int64_t num_running);

// StepLoad is what a step computes whatever its width.
struct StepLoad {
  int64_t num_requests = 0;  // requests that decode, ≥ 1
  int64_t num_keys = 0;      // keys of all these requests together
  int64_t num_prompt_tokens = 0;
};

// DraftAcceptance estimates how likely each draft of a step is accepted. The weight of an outcome decays with
// every later one.
class DraftAcceptance {
 public:
  // In a chain it estimates how likely a draft is accepted if those before it were. In a tree a draft has not
  // always the same parent, so there the estimate of a draft does not depend on other drafts.
  DraftAcceptance(int64_t most_drafts, bool is_chain)
      : is_chain_(is_chain), drafts_(static_cast<size_t>(most_drafts)) {}

  // Lets all outcomes so far count half.
  void forget_half();
  // Records that a request verified drafts 1 … num_drafts, of which it accepted these, in ascending order.
  void observe(int64_t num_drafts, std::span<const int32_t> accepted);
  // Returns the chance of draft 1, 2, …. A draft without observations is estimated as the draft before it.
  std::vector<double> chances() const;

 private:
  struct Outcomes {
    double verified = 0.0, accepted = 0.0;  // weights that decay
  };
  const bool is_chain_;
  std::vector<Outcomes> drafts_;
};

// Returns the expected number of tokens that a request gets from a step of this width: 1 and the chances of
// its drafts, but not more than the drafts of one path.
double expected_tokens(std::span<const double> chances, const DraftShape& shape, int64_t width);

// StepCosts estimates the time of a step from the model's sizes and the device's rates. The unit is the time
// in which the device reads a byte of weights. A pass reads its weights and the keys; of each MoE layer it
// reads the experts that its rows are expected to choose (weight_traffic.h). For each row it multiplies with
// all weights that the row uses and with the row's keys.
class StepCosts {
 public:
  // A model without layers (tests) costs nothing. Weights have the size that the checkpoint stores them in.
  StepCosts(const ModelConfig& config, const KvLayout& layout, const DeviceRates& rates,
            const DraftShape& shape = {});

  // Returns the cost of a step of this width whose requests get `tokens` tokens each. The cost includes the
  // target's pass, NextN's pass over the tokens, and NextN's passes for drafts after the first depth.
  double step(const StepLoad& load, int64_t width, double tokens) const;
  // Returns the cost of NextN's pass over rows that have waited, which are `num_rows` for each request.
  double catch_up(const StepLoad& load, int64_t num_rows) const;

 private:
  struct Pass {
    double bytes = 0.0;         // bytes of weights that every pass reads, without the head
    double expert_bytes = 0.0;  // of one expert in each of the MoE layers
    double row_products = 0.0;  // multiply-adds of a row, without attention and the head
    double num_layers = 0.0;
  };
  double cost(const Pass& pass, const StepLoad& load, double rows_of_request, double num_logits,
              double prompt_rows) const;

  const ModelConfig config_;
  const DeviceRates rates_;
  const DraftShape shape_;
  Pass target_, nextn_;
  double head_products_ = 0.0;
  double key_products_ = 0.0;  // multiply-adds of a row with a key, in a layer
  double key_bytes_ = 0.0;     // bytes of a record, in a layer
};

class SpeculationPolicy {
 public:
  struct Choice {
    int64_t width = 1;
    bool probes = false;          // wider than the best, to learn whether drafts have become better
    int64_t num_probe_steps = 0;  // steps of the probe that this step begins
    double budget = 0.0;          // what the step adds to the budget for probes (negative: subtracts)
  };

  // max_width ≥ 1 is the width that the flags allow. `costs` must have been made with the same shape.
  SpeculationPolicy(int64_t max_width, StepCosts costs, const DraftShape& shape = {});

  // Chooses the width, in [1, widest], of the next step.
  Choice choose(const StepLoad& load, int64_t widest) const;
  // Records that a step with decoding requests was planned with this choice.
  void planned(const Choice& choice);
  // Records the outcome of a verification: how many drafts it had, and which of them were accepted.
  void observe(int64_t num_drafts, std::span<const int32_t> accepted) {
    acceptance_.observe(num_drafts, accepted);
  }

 private:
  int64_t best_width(const StepLoad& load, int64_t widest, std::span<const double> chances) const;
  // Returns the width of a probe: the best one if drafts are as good as they can be.
  int64_t hoped_width(const StepLoad& load, int64_t widest) const;

  const StepCosts costs_;
  const DraftShape shape_;
  DraftAcceptance acceptance_;
  const std::vector<double> certain_;  // the chances of drafts that are all right
  int64_t num_probe_steps_ = 0;        // steps that are left of the probe that has begun
  double budget_ = 0.0;                // cost that probes may have: kShareOfProbes of the cost of all steps
  int64_t num_resting_ = 0;            // steps of width 1 since the last wider one
};

}  // namespace hadal
