// Tests the search for the fastest choice, over artificial landscapes of times.
#include "tune/tune_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/tune/fake_measurer.h"

namespace hadal {
namespace {

class TuneSearch : public ::testing::Test {
 protected:
  SearchOptions options(double seconds, bool every = true) {
    return {.seconds = seconds,
            .every = every,
            .now = [this] { return clock_; },
            .interrupted = [this] { return interrupted_; }};
  }
  double clock_ = 100.0;
  bool interrupted_ = false;
  const cuda::LinearShape shape_{.type = WeightType::kFp8Block, .m = 8, .n = 4096, .k = 7168};
  const std::vector<cuda::Choice> candidates_ = cuda::valid_choices(shape_);
};

TEST_F(TuneSearch, FindsTheFastest) {
  ASSERT_GT(candidates_.size(), 40);
  for (size_t i = 0; i < candidates_.size(); i += 7) {
    const cuda::Choice& best = candidates_[i];
    FakeMeasurer measurer([&](const cuda::Choice& c) { return landscape(c, best); }, clock_);
    const auto result = find_fastest(candidates_, cuda::heuristic(shape_), measurer, options(1e9));
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->chosen().choice, best)
        << to_string(best) << " for " << to_string(result->chosen().choice);
    EXPECT_TRUE(result->complete);
    EXPECT_NEAR(result->chosen().us, 10.0, 0.1);
  }
}

TEST_F(TuneSearch, SlowChoicesAreMeasuredOnce) {
  const cuda::Choice best = candidates_[3];
  FakeMeasurer measurer([&](const cuda::Choice& c) { return landscape(c, best); }, clock_);
  const auto result = find_fastest(candidates_, cuda::heuristic(shape_), measurer, options(1e9));
  ASSERT_TRUE(result.ok());
  int once = 0;
  for (const cuda::Choice& c : candidates_) {
    EXPECT_GE(measurer.replays_of(c), 1) << to_string(c);
    if (landscape(c, best) > 14.0 && c != cuda::heuristic(shape_)) {
      EXPECT_EQ(measurer.replays_of(c), 1) << to_string(c);
      ++once;
    }
  }
  EXPECT_GT(once, 20);
  EXPECT_EQ(measurer.replays_of(best), 1 + 3 + 8);
}

// Times grow with the distance from the best choice in each field, as those of kernels do, so the best is
// found with a fraction of the measurements, wherever it is.
TEST_F(TuneSearch, ClimbsToTheFastest) {
  int most = 0;
  for (const cuda::Choice& best : candidates_) {
    const auto time = [&](const cuda::Choice& c) {
      const auto steps = [](int a, int b) { return std::abs(std::log2(static_cast<double>(a) / b)); };
      const double kernel = c.kernel == best.kernel ? 0.0 : 6.0;
      if (best.stages == 0 || c.stages == 0) return 10.0 + kernel;
      return 10.0 + kernel + 1.5 * steps(c.block_m, best.block_m) + 2.0 * steps(c.block_n, best.block_n) +
             2.5 * steps(c.splits, best.splits) + 0.8 * steps(c.stages, best.stages);
    };
    FakeMeasurer measurer(time, clock_);
    const auto result = find_fastest(candidates_, cuda::heuristic(shape_), measurer, options(1e9, false));
    ASSERT_TRUE(result.ok());
    EXPECT_LT(result->chosen().us, 10.0 * 1.05)
        << to_string(best) << ", found " << to_string(result->chosen().choice);
    int distinct = 0;
    for (const cuda::Choice& c : candidates_) distinct += measurer.replays_of(c) > 0 ? 1 : 0;
    most = std::max(most, distinct);
  }
  EXPECT_LT(most, static_cast<int>(candidates_.size()) * 3 / 4);
}

// The choice of a similar shape is tried even if all its neighbours are slow.
TEST_F(TuneSearch, TriesLikelyChoices) {
  const cuda::Choice hidden = candidates_[candidates_.size() - 2];
  const auto time = [&](const cuda::Choice& c) { return c == hidden ? 5.0 : 10.0; };
  FakeMeasurer measurer(time, clock_);
  SearchOptions with = options(1e9, false);
  with.likely = {hidden, cuda::parse_choice("skinny 48x64 stages 4").value()};
  const auto result = find_fastest(candidates_, cuda::heuristic(shape_), measurer, with);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->chosen().choice, hidden);
  EXPECT_EQ(measurer.replays_of(with.likely[1]), 0) << "it is not a candidate";
}

TEST_F(TuneSearch, TheHeuristicIsKeptUnlessSomethingIsClearlyFaster) {
  FakeMeasurer measurer([](const cuda::Choice&) { return 10.0; }, clock_);
  const auto result = find_fastest(candidates_, cuda::heuristic(shape_), measurer, options(1e9));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->chosen().choice, cuda::heuristic(shape_));
}

// Whenever the search ends early, the clear winner of a finished round is the result.
TEST_F(TuneSearch, RespectsItsTimeLimit) {
  const cuda::Choice best = candidates_.back();
  const cuda::Choice heuristic = cuda::heuristic(shape_);
  ASSERT_NE(best, heuristic);
  int unfinished = 0, right_after_the_heuristic = 0, complete = 0;
  const int enough = 2 * static_cast<int>(candidates_.size());
  for (int budget = 0; budget < enough; ++budget) {
    const double seconds = 0.005 + 0.01 * budget;
    clock_ = 0.0;
    FakeMeasurer measurer(
        [&](const cuda::Choice& c) { return c == best        ? 10.0
                                            : c == heuristic ? 12.0
                                                             : 12.5; }, clock_);
    const auto result = find_fastest(candidates_, heuristic, measurer, options(seconds));
    ASSERT_TRUE(result.ok());
    EXPECT_LE(clock_, seconds + 0.12 + 1e-9) << "no measurement begins after the end";
    ASSERT_FALSE(result->ranking.empty()) << "the heuristic's choice at least";
    complete += result->complete ? 1 : 0;
    if (result->num_rounds == 0) {
      ++unfinished;
      continue;
    }
    EXPECT_EQ(result->chosen().choice, best) << seconds;
    EXPECT_NEAR(result->heuristic_us, 12.0, 12.0 * 0.04) << seconds;
    const size_t once =
        candidates_.size() + (std::count(candidates_.begin(), candidates_.end(), heuristic) ? 0 : 1);
    right_after_the_heuristic += static_cast<size_t>(result->num_measurements) == once + 1 ? 1 : 0;
  }
  EXPECT_GT(unfinished, 0);
  EXPECT_GT(right_after_the_heuristic, 0);
  EXPECT_GT(complete, 0);
}

TEST_F(TuneSearch, EndsWhenTheUserInterrupts) {
  int left = 10;
  FakeMeasurer measurer(
      [&](const cuda::Choice&) {
        interrupted_ = --left == 0;
        return 10.0;
      },
      clock_);
  const auto result = find_fastest(candidates_, cuda::heuristic(shape_), measurer, options(1e9));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->num_measurements, 10);
  EXPECT_FALSE(result->complete);
  EXPECT_EQ(result->num_rounds, 0);
}

}  // namespace
}  // namespace hadal
