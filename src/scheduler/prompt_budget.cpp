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

int64_t PromptBudget::most(const RequestState& request, int64_t begin, int64_t wanted, bool delays) const {
  const int64_t most = std::min(left_.tokens, wanted);
  if (!delays || !limits_cost_) return most;
  // The cost grows with the number of tokens, so the largest number that is not too expensive is found by
  // halving.
  int64_t fits = 0;
  int64_t too_many = most + 1;
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    (cost_of(request, begin, begin + middle) <= left_.cost ? fits : too_many) = middle;
  }
  return std::max(fits, std::min(most, left_.least));
}

void PromptBudget::take(const RequestState& request, int64_t begin, int64_t num_tokens, bool delays) {
  const double cost = cost_of(request, begin, begin + num_tokens);
  left_.tokens -= num_tokens;
  left_.cost -= cost;
  taken_cost_ += cost;
  if (delays) left_.least = std::max<int64_t>(left_.least - num_tokens, 0);
}

void PromptBudget::set_half_aside() {
  const Allowance half = {.tokens = left_.tokens / 2, .cost = left_.cost / 2, .least = left_.least / 2};
  left_ = {.tokens = left_.tokens - half.tokens,
           .cost = left_.cost - half.cost,
           .least = left_.least - half.least};
  aside_ = {.tokens = aside_.tokens + half.tokens,
            .cost = aside_.cost + half.cost,
            .least = aside_.least + half.least};
}

void PromptBudget::give_back() {
  left_ = {.tokens = left_.tokens + aside_.tokens,
           .cost = left_.cost + aside_.cost,
           .least = left_.least + aside_.least};
  aside_ = {};
}

}  // namespace hadal
