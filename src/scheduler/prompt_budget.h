// PromptBudget holds how many prompt (and recomputed) tokens a step may still take. All prompts share a
// number of tokens. While another client generates, a prompt takes, in addition, no more than what is left of
// a cost, because the next token of that client comes when the step ends.
//
// A client that comes while a step runs waits for its end, too. So a step that has cost twice what its number
// of tokens would cost by themselves begins no further prompt of a client that has one in the step: of many
// prompts with a few new tokens after a long cached prefix, each costs the keys and values of that prefix.
#pragma once

#include <cstdint>
#include <limits>
#include <unordered_set>

#include "scheduler/request_state.h"
#include "scheduler/scheduler.h"

namespace hadal {

class PromptBudget {
 public:
  // `cost` is in rows (PromptCosts), kUnlimitedCost for no limit.
  PromptBudget(const PromptCosts& costs, int64_t tokens, int64_t cost)
      : costs_(costs),
        left_{.tokens = tokens, .cost = static_cast<double>(cost), .least = kLeastCost},
        enough_cost_(2.0 * static_cast<double>(tokens)),
        limits_cost_(cost != kUnlimitedCost) {}

  int64_t tokens() const { return left_.tokens; }
  // Returns the cost in rows of all tokens that were taken.
  double taken_cost() const { return taken_cost_; }

  // Returns the cost in rows of a request's tokens from `begin` to `end`, computed in one step.
  double cost_of(const RequestState& request, int64_t begin, int64_t end, bool absorbed) const;
  // Returns whether these tokens take the absorbed path. `delays` says that another client generates: other
  // chunks never do, so that what a client computes alone does not depend on where its prompts are cut.
  bool absorbs(const RequestState& request, int64_t begin, int64_t end, bool delays) const;

  // Returns how many of the `wanted` next tokens the step may compute, at most, for a request that has
  // `num_taken` tokens of this step from `begin` on. Where `delays`, they have at least kLeastCost together,
  // and the first such prompt of a step gets a token whatever it costs, so that it advances with every step;
  // the others may get none. A further prompt of a client gets none once the step costs enough.
  int64_t most(const RequestState& request, int64_t begin, int64_t num_taken, int64_t wanted,
               bool delays) const;
  // Counts `count` more tokens that the step computes.
  void take(const RequestState& request, int64_t begin, int64_t num_taken, int64_t count, bool delays);

  // Puts half of everything that is left aside, until it is given back. Half of the tokens is rounded
  // up for what stays.
  void set_half_aside();
  void give_back();

  // A step needs nearly the same time for this many rows as for one, because it reads the same weights.
  static constexpr double kLeastCost = 16.0;

 private:
  // Allowance is what may still be taken.
  struct Allowance {
    int64_t tokens = 0;
    double cost = 0.0;
    double least = 0.0;  // rows of prompts that delay others, whatever the limit is
  };

  double chunk_cost(const RequestState& request, int64_t begin, int64_t end, bool delays) const {
    return cost_of(request, begin, end, absorbs(request, begin, end, delays));
  }

  PromptCosts costs_;
  Allowance left_;
  Allowance aside_;
  double enough_cost_;  // a step that costs this much begins no further prompt of the same client
  std::unordered_set<uint64_t> clients_;  // those with prompt tokens in the step
  bool limits_cost_;
  double taken_cost_ = 0.0;
  bool delays_others_ = false;  // the step has tokens of a prompt that delays another client's generation
};

}  // namespace hadal
