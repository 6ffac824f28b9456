#include "scheduler/prompt_budget.h"

#include <algorithm>

namespace hadal {

double PromptBudget::cost_of(const RequestState& request, int64_t begin, int64_t end) const {
  double cost = static_cast<double>(end - begin);
  if (costs_.positions_per_row > 0) {
    // The sum of all positions from `begin` to `end`, each of which is read once.
    cost += 0.5 * static_cast<double>(end - begin) * static_cast<double>(begin + end) /
            static_cast<double>(costs_.positions_per_row);
  }
  const int64_t num_scored = std::max<int64_t>(end - std::max(begin, request.scored_from), 0);
  return cost + static_cast<double>(num_scored * costs_.rows_per_score);
}

int64_t PromptBudget::most(const RequestState& request, int64_t begin, int64_t wanted, bool delays,
                           double share) const {
  const int64_t most = std::min(tokens_, wanted);
  if (!delays || !limits_cost_) return most;
  const double left = share * cost_;
  // The cost grows with the number of tokens, so the largest number that is not too expensive is found by
  // halving.
  int64_t fits = 0;
  int64_t too_many = most + 1;
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    (cost_of(request, begin, begin + middle) <= left ? fits : too_many) = middle;
  }
  return delays_others_ ? fits : std::max(fits, std::min(most, kLeastTokens));
}

void PromptBudget::take(const RequestState& request, int64_t begin, int64_t num_tokens, bool delays) {
  if (num_tokens == 0) return;
  tokens_ -= num_tokens;
  const double cost = cost_of(request, begin, begin + num_tokens);
  cost_ -= cost;
  taken_cost_ += cost;
  delays_others_ = delays_others_ || delays;
}

}  // namespace hadal
