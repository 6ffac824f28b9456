// Finds the fastest of some choices by measuring them: first the likely ones briefly (or all of them), then
// the better ones again with more replays. It is host code that does not depend on the device. One thread
// uses it.
#pragma once

#include <functional>
#include <vector>

#include "base/result.h"
#include "kernels/cuda/choice.h"

namespace hadal {

class ChoiceMeasurer {
 public:
  virtual ~ChoiceMeasurer() = default;
  // Returns microseconds per call from this number of replays; more replays mean less noise. Errors end the
  // search.
  virtual Result<double> measure(const cuda::Choice& choice, int replays) = 0;
};

struct SearchOptions {
  double seconds = 1.0;               // no measurement is begun after this time
  bool every = false;                 // measure every candidate, not only likely ones
  std::vector<cuda::Choice> likely;   // candidates to measure early: the choices of similar shapes
  std::function<double()> now;        // seconds, ascending
  std::function<bool()> interrupted;  // called before every measurement
};

struct MeasuredChoice {
  cuda::Choice choice;
  double us = 0.0;
  int replays = 0;  // replays of the last measurement, which is the one that counts
};

struct SearchResult {
  // The choices of the last round come first, fastest first; then those of earlier rounds. It is empty if
  // interrupted before the first measurement.
  std::vector<MeasuredChoice> ranking;
  double heuristic_us = 0.0;  // time of the heuristic's choice, measured as often as the best
  int num_measurements = 0;
  int num_rounds = 0;     // finished rounds
  bool complete = false;  // neither the time limit nor the user ended the search

  // Returns the best choice, or the heuristic's if nothing is faster by more than kWorthChanging.
  const MeasuredChoice& chosen() const;
  cuda::Choice heuristic;
};

// Smaller gains are treated as noise, because they depend on the neighbouring kernels of a chain.
inline constexpr double kWorthChanging = 0.04;
inline constexpr int kRoundReplays[] = {1, 3, 8};

// `heuristic` is measured first and in every round, even if it is not among the candidates. The first round
// measures every candidate if options.every. Otherwise it begins with the likely candidates and some of each
// kernel, and continues with the neighbours of each kernel's fastest: one field per step up or down. The
// fastest of a round go on to the next round: at most a third of the choices (or four, if that is more), and
// none that is slower than the best by more than a quarter, or in later rounds a twelfth.
Result<SearchResult> find_fastest(const std::vector<cuda::Choice>& candidates, const cuda::Choice& heuristic,
                                  ChoiceMeasurer& measurer, const SearchOptions& options);

}  // namespace hadal
