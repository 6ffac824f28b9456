// PromptBudget holds how many prompt (and recomputed) tokens a step may still compute. All prompts share a
// number of tokens. Few of them may be scored, because that takes a row of logits each. While another client
// generates, a prompt must also fit into what is left of a cost limit, because that client's next token comes
// only when the step ends.
//
// A request that arrives while a step runs waits for the end of that step, too. So a step that has cost twice
// what its number of tokens would cost by themselves begins no further prompt of a client that already has
// one in the step. Otherwise many prompts with a few new tokens after a long cached prefix would make the
// step long, because each costs the keys and values of its prefix.
#pragma once

#include <cstdint>
#include <limits>
#include <unordered_set>

#include "scheduler/request_state.h"
#include "scheduler/scheduler.h"

namespace hadal {

class PromptBudget {
 public:
  // `cost` is in rows (PromptCosts); kUnlimitedCost means no limit. At most `scored` tokens are scored.
  PromptBudget(const PromptCosts& costs, int64_t tokens, int64_t cost,
               int64_t scored = std::numeric_limits<int64_t>::max())
      : costs_(costs),
        left_{.tokens = tokens, .scored = scored, .cost = static_cast<double>(cost), .least = kLeastCost},
        enough_cost_(2.0 * static_cast<double>(tokens)),
        limits_cost_(cost != kUnlimitedCost) {}

  int64_t tokens() const { return left_.tokens; }
  // Returns how many of the tokens from `begin` to `end` are scored. The last prompt token is not, because
  // no prompt token follows it.
  static int64_t num_scored(const RequestState& request, int64_t begin, int64_t end);
  // Returns whether a request that continues at `begin` gets no token because no more may be scored.
  bool lacks_scores(const RequestState& request, int64_t begin) const {
    return left_.scored <= 0 && num_scored(request, begin, begin + 1) > 0;
  }
  // Returns the cost in rows of all tokens that were taken from the budget.
  double taken_cost() const { return taken_cost_; }

  // Returns the cost in rows of a request's tokens from `begin` to `end`, computed in one step.
  double cost_of(const RequestState& request, int64_t begin, int64_t end, bool absorbed) const;
  // Returns whether these tokens use the absorbed path. `delays` says that another client generates. Chunks
  // that delay nobody never use it, so that what a client computes alone does not depend on where its prompts
  // are cut.
  bool absorbs(const RequestState& request, int64_t begin, int64_t end, bool delays) const;

  // Returns how many of the `wanted` next tokens the step may compute, at most, for a request that already
  // has `num_taken` tokens in this step from `begin` on. Prompts that delay another client (`delays`) may
  // together cost kLeastCost rows whatever the limit is, and the first of them gets at least one token, so
  // that it advances with every step; the others may get none. A further prompt of the same client gets none
  // once the step costs enough_cost_.
  int64_t most(const RequestState& request, int64_t begin, int64_t num_taken, int64_t wanted,
               bool delays) const;
  // Counts `count` more tokens that the step computes.
  void take(const RequestState& request, int64_t begin, int64_t num_taken, int64_t count, bool delays);

  // Sets half of everything that is left aside, until it is given back. If the number of tokens is odd, the
  // half that stays is the larger one.
  void set_half_aside();
  void give_back();

  // A step needs nearly the same time for this many rows as for one, because it reads the same weights.
  static constexpr double kLeastCost = 16.0;

 private:
  // Allowance is what the step may still compute.
  struct Allowance {
    int64_t tokens = 0;
    int64_t scored = 0;  // of the tokens, how many may be scored
    double cost = 0.0;
    double least = 0.0;  // rows that prompts which delay others may cost whatever the limit is
  };

  // Returns how many of the `wanted` tokens from `begin` on can be computed if `scored` may be scored.
  static int64_t most_by_scores(const RequestState& request, int64_t begin, int64_t wanted, int64_t scored);
  double chunk_cost(const RequestState& request, int64_t begin, int64_t end, bool delays) const {
    return cost_of(request, begin, end, absorbs(request, begin, end, delays));
  }

  PromptCosts costs_;
  Allowance left_;
  Allowance aside_;
  double enough_cost_;  // a step that costs this much begins no further prompt of the same client
  std::unordered_set<uint64_t> clients_;  // clients with prompt tokens in the step
  bool limits_cost_;
  double taken_cost_ = 0.0;
  bool delays_others_ = false;  // the step has tokens of a prompt that delays another client's generation
};

}  // namespace hadal
