// The search for the fastest of some choices by measuring them: the likely ones briefly (or all of them),
// then the better ones again and longer. Host code that knows nothing of a device. One thread.
#pragma once

#include <functional>
#include <vector>

#include "base/result.h"
#include "kernels/cuda/choice.h"

namespace hadal {

class ChoiceMeasurer {
 public:
  virtual ~ChoiceMeasurer() = default;
  // Microseconds a call, from so many replays; more replays, less noise. Errors end the search.
  virtual Result<double> measure(const cuda::Choice& choice, int replays) = 0;
};

struct SearchOptions {
  double seconds = 1.0;               // at the end of which no measurement is begun
  bool every = false;                 // every candidate is measured, not only likely ones
  std::vector<cuda::Choice> likely;   // measured early where they are candidates: what similar shapes chose
  std::function<double()> now;        // seconds, ascending
  std::function<bool()> interrupted;  // asked before every measurement
};

struct MeasuredChoice {
  cuda::Choice choice;
  double us = 0.0;
  int replays = 0;  // of the last measurement, which counts
};

struct SearchResult {
  // Those of the last round first, fastest first; then those of earlier rounds. Empty when interrupted before
  // the first measurement.
  std::vector<MeasuredChoice> ranking;
  double heuristic_us = 0.0;  // the heuristic's choice, measured as often as the best
  int num_measurements = 0;
  int num_rounds = 0;     // that were finished
  bool complete = false;  // neither time nor the user ended it

  // The best one; the heuristic's where nothing is faster by more than kWorthChanging.
  const MeasuredChoice& chosen() const;
  cuda::Choice heuristic;
};

// Less than this moves in a chain of kernels by what their neighbours leave, either way.
inline constexpr double kWorthChanging = 0.04;
inline constexpr int kRoundReplays[] = {1, 3, 8};

// `heuristic` is measured first and in every round, among the candidates or not. The first round measures
// every candidate, or (unless options.every) begins with the likely ones and some of each kernel, and goes on
// with the neighbours of each kernel's fastest: one field a step up or down. Of a round the fastest go on:
// at most a third of it (four at least), none slower than the best by more than a quarter, then a twelfth.
Result<SearchResult> find_fastest(const std::vector<cuda::Choice>& candidates, const cuda::Choice& heuristic,
                                  ChoiceMeasurer& measurer, const SearchOptions& options);

}  // namespace hadal
