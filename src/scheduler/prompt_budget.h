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
        tokens_(tokens),
        cost_(static_cast<double>(cost)),
        limits_cost_(cost != kUnlimitedCost) {}

  int64_t tokens() const { return tokens_; }
  // Returns the cost in rows of all tokens that were taken.
  double taken_cost() const { return taken_cost_; }

  // Returns the cost in rows of a request's tokens from `begin` to `end`.
  double cost_of(const RequestState& request, int64_t begin, int64_t end) const;

  // Returns how many of the `wanted` tokens from `begin` on the step may compute, at most. `delays` says that
  // another client generates. The first of such prompts gets at least kLeastTokens of what `tokens` allows,
  // so that it advances with every step; the others may get none. `share` of what is left of the cost may be
  // used, in (0, 1].
  int64_t most(const RequestState& request, int64_t begin, int64_t wanted, bool delays, double share) const;
  // Counts tokens that the step computes.
  void take(const RequestState& request, int64_t begin, int64_t num_tokens, bool delays);

  // A step needs nearly the same time for this many tokens as for one, because it reads the same weights.
  static constexpr int64_t kLeastTokens = 16;

 private:
  PromptCosts costs_;
  int64_t tokens_;
  double cost_;  // what is left
  bool limits_cost_;
  double taken_cost_ = 0.0;
  bool delays_others_ = false;  // the step has tokens of a prompt that delays another client's generation
};

}  // namespace hadal
