#include "engine/tune_search.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace hadal {
namespace {

constexpr size_t kLeastSurvivors = 4;

double most_of_best(size_t round) {
  return round == 0 ? 1.25 : 1.0 + 1.0 / 12.0;
}

}  // namespace

const MeasuredChoice& SearchResult::chosen() const {
  HADAL_CHECK(!ranking.empty(), "nothing was measured");
  const MeasuredChoice& best = ranking.front();
  if (best.us < heuristic_us * (1.0 - kWorthChanging)) return best;
  for (const MeasuredChoice& measured : ranking) {
    if (measured.choice == heuristic) return measured;
  }
  return best;
}

Result<SearchResult> find_fastest(const std::vector<cuda::Choice>& candidates, const cuda::Choice& heuristic,
                                  ChoiceMeasurer& measurer, const SearchOptions& options) {
  SearchResult result{.heuristic = heuristic};
  const double end = options.now() + options.seconds;
  std::vector<cuda::Choice> field{heuristic};
  for (const cuda::Choice& candidate : candidates) {
    if (candidate != heuristic) field.push_back(candidate);
  }
  bool stopped = false;
  for (size_t round = 0; round < std::size(kRoundReplays) && !stopped; ++round) {
    std::vector<MeasuredChoice> measured;
    for (const cuda::Choice& choice : field) {
      const bool first_of_all = result.num_measurements == 0;
      stopped = options.interrupted() || (!first_of_all && options.now() >= end);
      if (stopped) break;
      HADAL_ASSIGN_OR_RETURN(const double us, measurer.measure(choice, kRoundReplays[round]));
      ++result.num_measurements;
      measured.push_back({choice, us, kRoundReplays[round]});
    }
    // The heuristic's choice is the first of a round. What breaks off before a second one compares nothing
    // with it: the rounds before count.
    if (stopped && measured.size() < 2 && !result.ranking.empty()) break;
    if (!measured.empty()) result.heuristic_us = measured.front().us;
    std::stable_sort(measured.begin(), measured.end(),
                     [](const auto& a, const auto& b) { return a.us < b.us; });
    // A round broken off later counts before what was measured more briefly.
    std::vector<MeasuredChoice> ranking = measured;
    for (const MeasuredChoice& old : result.ranking) {
      const bool again = std::any_of(measured.begin(), measured.end(),
                                     [&](const MeasuredChoice& m) { return m.choice == old.choice; });
      if (!again) ranking.push_back(old);
    }
    result.ranking = std::move(ranking);
    if (stopped) break;
    ++result.num_rounds;
    const size_t most = std::max(kLeastSurvivors, (measured.size() + 2) / 3);
    field = {heuristic};
    for (const MeasuredChoice& m : measured) {
      if (m.choice == heuristic) continue;
      if (field.size() > most || m.us > measured.front().us * most_of_best(round)) break;
      field.push_back(m.choice);
    }
  }
  result.complete = !stopped;
  return result;
}

}  // namespace hadal
