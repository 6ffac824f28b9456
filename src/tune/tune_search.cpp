#include "tune/tune_search.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>

#include "base/check.h"

namespace hadal {
namespace {

constexpr size_t kLeastSurvivors = 4;
// If a kernel has at most this many candidates, all of them are tried.
constexpr size_t kFewCandidates = 8;
// A kernel's neighbours are tried if its fastest seed is at most kWorthClimbing times as slow as the best
// choice of all kernels. Then the neighbours of its kMostExpanded fastest choices are tried, if these are at
// most kWorthExpanding times as slow as the kernel's best.
constexpr double kWorthClimbing = 1.4;
constexpr double kWorthExpanding = 1.03;
constexpr size_t kMostExpanded = 8;

double most_of_best(size_t round) {
  return round == 0 ? 1.25 : 1.0 + 1.0 / 12.0;
}

// Axes are the fields of a choice except its kernel and the length of its ring. The other fields determine
// the length except for a few alternatives.
using Axes = std::array<int, 4>;
Axes axes_of(const cuda::Choice& c) {
  return {c.block_m, c.block_n, c.splits, c.cluster};
}

bool contains(const std::vector<cuda::Choice>& choices, const cuda::Choice& choice) {
  return std::find(choices.begin(), choices.end(), choice) != choices.end();
}

// Returns the candidates with these axes, short rings first.
std::vector<cuda::Choice> rings_of(const std::vector<cuda::Choice>& candidates, cuda::ProductKernel kernel,
                                   const Axes& axes) {
  std::vector<cuda::Choice> rings;
  for (const cuda::Choice& c : candidates) {
    if (c.kernel == kernel && axes_of(c) == axes) rings.push_back(c);
  }
  std::sort(rings.begin(), rings.end(), [](const auto& a, const auto& b) { return a.stages < b.stages; });
  return rings;
}

// Returns choices of the same kernel that differ in one field: the length of the ring by one or two steps
// (the effect of one step may be smaller than the noise of measurements), or one axis by one step, with the
// shortest or longest ring that is available.
std::vector<cuda::Choice> neighbours(const std::vector<cuda::Choice>& candidates,
                                     const cuda::Choice& centre) {
  std::vector<cuda::Choice> out;
  const Axes axes = axes_of(centre);
  const std::vector<cuda::Choice> rings = rings_of(candidates, centre.kernel, axes);
  size_t rank = 0;
  while (rank + 1 < rings.size() && rings[rank].stages < centre.stages) ++rank;
  for (const size_t step : {1, 2}) {
    if (rank + step < rings.size()) out.push_back(rings[rank + step]);
    if (rank >= step) out.push_back(rings[rank - step]);
  }
  for (size_t axis = 0; axis < axes.size(); ++axis) {
    for (const bool up : {false, true}) {
      std::optional<Axes> next;
      for (const cuda::Choice& c : candidates) {
        Axes other = axes_of(c);
        const int value = other[axis];
        other[axis] = axes[axis];
        if (c.kernel != centre.kernel || other != axes || (up ? value <= axes[axis] : value >= axes[axis]))
          continue;
        if (!next || (up ? value < (*next)[axis] : value > (*next)[axis])) next = axes_of(c);
      }
      if (!next) continue;
      const std::vector<cuda::Choice> lengths = rings_of(candidates, centre.kernel, *next);
      const size_t last = lengths.size() - 1;
      out.push_back(
          lengths[rings.size() < 2 ? last : (rank * last + (rings.size() - 1) / 2) / (rings.size() - 1)]);
    }
  }
  return out;
}

// Returns the choices with which the first round begins. For a kernel with many candidates, they have the
// fewest rows per tile and cover each width with 1, 2, 4, … splits once, with a ring of middle length.
std::vector<cuda::Choice> seeds(const std::vector<cuda::Choice>& candidates, const cuda::Choice& heuristic,
                                const std::vector<cuda::Choice>& likely) {
  std::vector<cuda::Choice> out{heuristic};
  const auto add = [&](const cuda::Choice& choice) {
    if (!contains(out, choice)) out.push_back(choice);
  };
  for (const cuda::Choice& choice : likely) {
    if (contains(candidates, choice)) add(choice);
  }
  for (const cuda::ProductKernel kernel : cuda::kProductKernels) {
    std::vector<cuda::Choice> of_kernel;
    std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(of_kernel),
                 [&](const cuda::Choice& c) { return c.kernel == kernel; });
    if (of_kernel.size() <= kFewCandidates) {
      for (const cuda::Choice& choice : of_kernel) add(choice);
      continue;
    }
    const int fewest_rows =
        std::min_element(of_kernel.begin(), of_kernel.end(), [](const auto& a, const auto& b) {
          return a.block_m < b.block_m;
        })->block_m;
    std::vector<Axes> done;
    for (const cuda::Choice& choice : of_kernel) {
      const Axes axes = axes_of(choice);
      const bool is_power_of_two = (choice.splits & (choice.splits - 1)) == 0;
      if (choice.block_m != fewest_rows || !is_power_of_two ||
          std::find(done.begin(), done.end(), axes) != done.end())
        continue;
      done.push_back(axes);
      const std::vector<cuda::Choice> rings = rings_of(of_kernel, kernel, axes);
      add(rings[rings.size() / 2]);
    }
  }
  return out;
}

// Holds the measurements of one round.
class Round {
 public:
  Round(ChoiceMeasurer& measurer, int replays, const SearchOptions& options, double end,
        int& num_measurements)
      : measurer_(measurer),
        replays_(replays),
        options_(options),
        end_(end),
        num_measurements_(num_measurements) {}

  // Measures until the time is over or the user ends it.
  Result<void> measure(const std::vector<cuda::Choice>& choices) {
    for (const cuda::Choice& choice : choices) {
      if (find(choice) != nullptr) continue;
      const bool first_of_all = num_measurements_ == 0;
      stopped_ = stopped_ || options_.interrupted() || (!first_of_all && options_.now() >= end_);
      if (stopped_) return {};
      HADAL_ASSIGN_OR_RETURN(const double us, measurer_.measure(choice, replays_));
      ++num_measurements_;
      measured_.push_back({choice, us, replays_});
    }
    return {};
  }

  // Moves from each kernel's fastest choices to their neighbours, until all neighbours of the fastest are
  // measured.
  Result<void> climb(const std::vector<cuda::Choice>& candidates) {
    for (const cuda::ProductKernel kernel : cuda::kProductKernels) {
      std::vector<cuda::Choice> expanded;
      while (!stopped_ && expanded.size() < kMostExpanded) {
        std::vector<MeasuredChoice> ranking = measured_;
        std::stable_sort(ranking.begin(), ranking.end(),
                         [](const auto& a, const auto& b) { return a.us < b.us; });
        const double best_of_all = ranking.empty() ? 0.0 : ranking.front().us;
        std::erase_if(ranking, [&](const MeasuredChoice& m) { return m.choice.kernel != kernel; });
        const auto next = std::find_if(ranking.begin(), ranking.end(), [&](const MeasuredChoice& m) {
          return !contains(expanded, m.choice);
        });
        if (next == ranking.end() || next->us > ranking.front().us * kWorthExpanding ||
            next->us > best_of_all * kWorthClimbing)
          break;
        const cuda::Choice centre = next->choice;
        expanded.push_back(centre);
        HADAL_RETURN_IF_ERROR(measure(neighbours(candidates, centre)));
      }
    }
    return {};
  }

  const std::vector<MeasuredChoice>& measured() const { return measured_; }  // the heuristic's is the first
  bool stopped() const { return stopped_; }

 private:
  const MeasuredChoice* find(const cuda::Choice& choice) const {
    for (const MeasuredChoice& m : measured_) {
      if (m.choice == choice) return &m;
    }
    return nullptr;
  }

  ChoiceMeasurer& measurer_;
  int replays_;
  const SearchOptions& options_;
  double end_;
  int& num_measurements_;
  std::vector<MeasuredChoice> measured_;
  bool stopped_ = false;
};

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
  std::vector<cuda::Choice> field = seeds(candidates, heuristic, options.likely);
  if (options.every) {
    field = {heuristic};
    field.insert(field.end(), candidates.begin(), candidates.end());
  }
  bool stopped = false;
  for (size_t i = 0; i < std::size(kRoundReplays) && !stopped; ++i) {
    Round round(measurer, kRoundReplays[i], options, end, result.num_measurements);
    HADAL_RETURN_IF_ERROR(round.measure(field));
    if (i == 0 && !options.every) HADAL_RETURN_IF_ERROR(round.climb(candidates));
    std::vector<MeasuredChoice> measured = round.measured();
    stopped = round.stopped();
    // The heuristic's choice is the first of a round. A round that ends before its second measurement has
    // nothing to compare with it, so the results of the earlier rounds are used.
    if (stopped && measured.size() < 2 && !result.ranking.empty()) break;
    if (!measured.empty()) result.heuristic_us = measured.front().us;
    std::stable_sort(measured.begin(), measured.end(),
                     [](const auto& a, const auto& b) { return a.us < b.us; });
    // The measurements of an unfinished round come before those of earlier rounds, which have fewer replays.
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
      if (field.size() > most || m.us > measured.front().us * most_of_best(i)) break;
      field.push_back(m.choice);
    }
  }
  result.complete = !stopped;
  return result;
}

}  // namespace hadal
