// PromptBudget holds how many prompt (and recomputed) tokens a step may still take. All prompts share a
// number of tokens. A prompt beside which another client generates takes, in addition, no more than what is
// left of a cost, because the next token of that client comes when the step ends.
#pragma once

#include <cstdint>
#include <limits>

#include "scheduler/request_state.h"
#include "scheduler/scheduler.h"

namespace hadal {

class PromptBudget {
 public:
  // `cost` is in rows (PromptCosts), kUnlimitedCost for no limit.
  PromptBudget(const PromptCosts& costs, int64_t tokens, int64_t cost)
      : costs_(costs),
        left_{.tokens = tokens, .cost = static_cast<double>(cost), .least = kLeastTokens},
        limits_cost_(cost != kUnlimitedCost) {}

  int64_t tokens() const { return left_.tokens; }
  // Returns the cost in rows of all tokens that were taken.
  double taken_cost() const { return taken_cost_; }

  // Returns the cost in rows of a request's tokens from `begin` to `end`.
  double cost_of(const RequestState& request, int64_t begin, int64_t end) const;

  // Returns how many of the `wanted` tokens from `begin` on the step may compute, at most. `delays` says that
  // another client generates. Such prompts get at least kLeastTokens together, of what `tokens` allows, so
  // that one of them advances with every step; then they may get none.
  int64_t most(const RequestState& request, int64_t begin, int64_t wanted, bool delays) const;
  // Counts tokens that the step computes.
  void take(const RequestState& request, int64_t begin, int64_t num_tokens, bool delays);

  // Puts half of everything that is left aside, until it is given back. The halves of the tokens are rounded
  // up for what stays.
  void set_half_aside();
  void give_back();

  // A step needs nearly the same time for this many tokens as for one, because it reads the same weights.
  static constexpr int64_t kLeastTokens = 16;

 private:
  // Allowance is what may still be taken.
  struct Allowance {
    int64_t tokens = 0;
    double cost = 0.0;
    int64_t least = 0;  // tokens of prompts that delay others, whatever they cost
  };

  PromptCosts costs_;
  Allowance left_;
  Allowance aside_;
  bool limits_cost_;
  double taken_cost_ = 0.0;
};

}  // namespace hadal
