#include "scheduler/prompt_budget.h"

#include <algorithm>

namespace hadal {

double PromptBudget::cost_of(const RequestState& request, int64_t begin, int64_t end, bool absorbed) const {
  double cost = static_cast<double>(end - begin);
  const int64_t per_row = absorbed ? costs_.absorbed_positions_per_row : costs_.positions_per_row;
  if (per_row > 0) {
    // This is the sum of all positions from `begin` to `end`, each of which is read once.
    cost += 0.5 * static_cast<double>(end - begin) * static_cast<double>(begin + end) /
            static_cast<double>(per_row);
  }
  if (!absorbed && end > begin) {
    cost += static_cast<double>(begin) * static_cast<double>(costs_.rows_per_1024_expanded) / 1024;
  }
  const int64_t num_scored = std::max<int64_t>(end - std::max(begin, request.scored_from), 0);
  return cost + static_cast<double>(num_scored * costs_.rows_per_score);
}

int64_t PromptBudget::num_scored(const RequestState& request, int64_t begin, int64_t end) {
  if (request.prompt_done) return 0;
  return std::max<int64_t>(std::min(end, request.prompt_len - 1) - std::max(begin, request.scored_from), 0);
}

int64_t PromptBudget::most_by_scores(const RequestState& request, int64_t begin, int64_t wanted,
                                     int64_t scored) {
  if (num_scored(request, begin, begin + wanted) <= scored) return wanted;
  return std::max(begin, request.scored_from) + scored - begin;
}

bool PromptBudget::absorbs(const RequestState& request, int64_t begin, int64_t end, bool delays) const {
  return delays && limits_cost_ && costs_.absorbed_positions_per_row > 0 &&
         cost_of(request, begin, end, true) < cost_of(request, begin, end, false);
}

int64_t PromptBudget::most(const RequestState& request, int64_t begin, int64_t num_taken, int64_t wanted,
                           bool delays) const {
  if (num_taken == 0 && taken_cost_ >= enough_cost_ && clients_.contains(request.client)) return 0;
  const int64_t most =
      most_by_scores(request, begin + num_taken, std::min(left_.tokens, wanted), left_.scored);
  if (!delays || !limits_cost_ || most <= 0) return most;
  const double limit =
      chunk_cost(request, begin, begin + num_taken, delays) + std::max(left_.cost, left_.least);
  // The cost grows with the number of tokens, so a binary search finds the largest number within the limit.
  int64_t fits = 0;
  int64_t too_many = most + 1;
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    (chunk_cost(request, begin, begin + num_taken + middle, delays) <= limit ? fits : too_many) = middle;
  }
  return delays_others_ ? fits : std::max<int64_t>(fits, 1);
}

void PromptBudget::take(const RequestState& request, int64_t begin, int64_t num_taken, int64_t count,
                        bool delays) {
  if (count == 0) return;
  const double cost = chunk_cost(request, begin, begin + num_taken + count, delays) -
                      chunk_cost(request, begin, begin + num_taken, delays);
  left_.tokens -= count;
  left_.scored -= num_scored(request, begin + num_taken, begin + num_taken + count);
  left_.cost -= cost;
  taken_cost_ += cost;
  clients_.insert(request.client);
  if (!delays) return;
  left_.least = std::max(left_.least - cost, 0.0);
  delays_others_ = true;
}

void PromptBudget::set_half_aside() {
  const Allowance half = {.tokens = left_.tokens / 2,
                          .scored = left_.scored / 2,
                          .cost = left_.cost / 2,
                          .least = left_.least / 2};
  left_ = {.tokens = left_.tokens - half.tokens,
           .scored = left_.scored - half.scored,
           .cost = left_.cost - half.cost,
           .least = left_.least - half.least};
  aside_ = {.tokens = aside_.tokens + half.tokens,
            .scored = aside_.scored + half.scored,
            .cost = aside_.cost + half.cost,
            .least = aside_.least + half.least};
}

void PromptBudget::give_back() {
  left_ = {.tokens = left_.tokens + aside_.tokens,
           .scored = left_.scored + aside_.scored,
           .cost = left_.cost + aside_.cost,
           .least = left_.least + aside_.least};
  aside_ = {};
}

}  // namespace hadal
