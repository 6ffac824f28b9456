// Runs random work, aborts and failures under the simulator's checks: under every policy, chunk size, pool
// and loop, each request's output equals the output that it has alone.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/sanitized.h"
#include "tests/scheduler/simulator.h"

namespace hadal::testing {
namespace {

using Rng = std::mt19937_64;

int64_t pick(Rng& rng, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(rng() % static_cast<uint64_t>(high - low + 1));
}

// Makes prompts that share prefixes of all lengths: beginnings of a few documents, ends of other requests and
// noise.
class Prompts {
 public:
  explicit Prompts(Rng& rng, int64_t max_len) : rng_(rng), max_len_(max_len) {
    for (auto& document : documents_) {
      for (int i = 0; i < 400; ++i) document.push_back(static_cast<int32_t>(rng_() % 1000));
    }
    std::copy_n(documents_[0].begin(), 150, documents_[1].begin());
  }
  std::vector<int32_t> next(const std::vector<int32_t>* earlier) {
    std::vector<int32_t> prompt = earlier != nullptr && rng_() % 4 == 0 ? *earlier : documents_[rng_() % 3];
    prompt.resize(pick(rng_, 0, std::min<int64_t>(max_len_ - 1, std::ssize(prompt))));
    if (rng_() % 3 == 0) prompt.resize(prompt.size() / 64 * 64);
    const int64_t extra = pick(rng_, prompt.empty() ? 1 : 0, 40);
    for (int64_t i = 0; i < extra && std::ssize(prompt) < max_len_; ++i) {
      prompt.push_back(static_cast<int32_t>(rng_() % 1000));
    }
    return prompt;
  }

 private:
  Rng& rng_;
  int64_t max_len_;
  std::array<std::vector<int32_t>, 3> documents_;
};

SimulatorOptions random_options(Rng& rng) {
  static constexpr int64_t kChunks[] = {-1, 5, 17, 64, 100, 256, 4096};
  static constexpr int64_t kPools[] = {4, 6, 8, 12, 20, 64, 500};
  static constexpr double kConservativeness[] = {0.01, 0.01, 0.3, 1.0, 2.0};
  SimulatorOptions options;
  SchedulerOptions& s = options.scheduler;
  s.num_pages = kPools[rng() % std::size(kPools)];
  s.max_running_requests = pick(rng, 1, 12);
  s.chunked_prefill_size = kChunks[rng() % std::size(kChunks)];
  s.max_prefill_tokens = rng() % 3 == 0 ? pick(rng, 5, 300) : 16384;
  s.policy = static_cast<SchedulePolicy>(rng() % 4);
  s.low_priority_values_first = rng() % 2 == 0;
  s.conservativeness = kConservativeness[rng() % std::size(kConservativeness)];
  s.eviction = static_cast<EvictionPolicy>(rng() % 3);
  s.enable_radix_cache = rng() % 6 != 0;
  s.cache_generated_tokens = rng() % 3 != 0;
  options.overlapped = rng() % 2 == 0;
  options.num_clients = static_cast<uint64_t>(pick(rng, 1, 4));
  if (rng() % 2 == 0) options.max_cost = pick(rng, 0, 200);
  s.prompt_costs = {.positions_per_row = pick(rng, 0, 40), .rows_per_score = pick(rng, 0, 3)};
  if (rng() % 2 == 0) s.max_scored_tokens = pick(rng, 1, 100);
  if (s.cache_generated_tokens && rng() % 2 == 0) {
    s.prompt_costs.rows_per_1024_expanded = pick(rng, 0, 2000);
    s.prompt_costs.absorbed_positions_per_row = pick(rng, 1, 20);
  }
  if (rng() % 2 == 0) {
    s.max_width = pick(rng, 1, 9);
    options.acceptance = static_cast<int32_t>(pick(rng, 0, 100));
  }
  options.end_token_odds = rng() % 2 == 0 ? 0 : static_cast<int32_t>(pick(rng, 5, 60));
  return options;
}

struct Totals {
  int64_t operations = 0, steps = 0, retractions = 0, copies = 0, late = 0, cached = 0, evicted = 0;
  int64_t accepted = 0, void_items = 0, scored = 0;
};

void run_randomly(uint64_t seed, int64_t num_operations, bool check_always, bool faults, Totals& totals) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Rng rng(seed);
  SimulatorOptions options = random_options(rng);
  options.check_always = check_always;
  Simulator simulator(options);
  const int64_t max_len = std::min<int64_t>(options.scheduler.num_pages * kCachePageSize, 500);
  Prompts prompts(rng, max_len);
  std::vector<RequestId> ids;
  const int64_t burst = pick(rng, 1, 20);

  while (simulator.num_operations() < num_operations) {
    const int64_t dice = pick(rng, 0, 99);
    if (dice < 12 && simulator.scheduler().stats().num_queued < 60) {
      for (int64_t i = pick(rng, 1, burst); i > 0; --i) {
        const auto* earlier = ids.empty() ? nullptr : &simulator.expected(ids[rng() % ids.size()]).tokens;
        std::vector<int32_t> prompt = prompts.next(earlier);
        const int64_t room = max_len - std::ssize(prompt);
        const int64_t max_new = rng() % 12 == 0 ? 0 : pick(rng, 0, std::min<int64_t>(room, 250));
        const int64_t max_cached = rng() % 4 == 0 ? pick(rng, 0, std::ssize(prompt) - 1) : -1;
        ids.push_back(
            simulator.add(std::move(prompt), max_new, max_cached, static_cast<int32_t>(pick(rng, -2, 2))));
      }
    } else if (dice < 14 && faults && !ids.empty()) {
      simulator.abort(ids[ids.size() - 1 - rng() % std::min<size_t>(ids.size(), 30)]);
    } else if (dice == 14 && faults) {
      if (rng() % 10 == 0) simulator.scheduler().flush_cache();
    } else if (simulator.num_in_flight() == 2 || (simulator.num_in_flight() == 1 && !options.overlapped) ||
               (simulator.num_in_flight() == 1 && dice < 50)) {
      simulator.complete_oldest();
    } else if (!simulator.plan(faults && rng() % 60 == 0) && simulator.num_in_flight() > 0) {
      simulator.complete_oldest();
    }
  }
  while (simulator.num_in_flight() > 0) simulator.complete_oldest();
  simulator.run_to_the_end();
  const SchedulerStats stats = simulator.scheduler().stats();
  totals.operations += simulator.num_operations();
  totals.steps += simulator.num_steps();
  totals.retractions += stats.total_retractions;
  totals.copies += simulator.num_copies();
  totals.late += simulator.num_late_tokens();
  totals.cached += stats.total_cached_tokens;
  totals.evicted += stats.total_evicted_tokens;
  totals.accepted += simulator.num_accepted();
  totals.void_items += simulator.num_void_items();
  totals.scored += simulator.num_scored();
}

void run_many(uint64_t first_seed, int num_runs, int64_t num_operations, bool check_always, bool faults) {
  if (kSanitized) num_runs /= 4;
  Totals totals;
  for (uint64_t seed = first_seed; seed < first_seed + num_runs; ++seed) {
    ASSERT_NO_THROW(run_randomly(seed, num_operations, check_always, faults, totals)) << "seed " << seed;
  }
  // The test proves nothing unless the rare paths were reached.
  EXPECT_GT(totals.retractions, 0);
  EXPECT_GT(totals.copies, 0);
  EXPECT_GT(totals.late, 0);
  EXPECT_GT(totals.cached, 0);
  EXPECT_GT(totals.evicted, 0);
  EXPECT_GT(totals.accepted, 0);
  EXPECT_GT(totals.void_items, 0);
  EXPECT_GT(totals.scored, 0);
  std::printf(
      "%lld calls, %lld steps, %lld retractions, %lld page copies, %lld late tokens, %lld cached tokens, "
      "%lld evicted\n",
      static_cast<long long>(totals.operations), static_cast<long long>(totals.steps),
      static_cast<long long>(totals.retractions), static_cast<long long>(totals.copies),
      static_cast<long long>(totals.late), static_cast<long long>(totals.cached),
      static_cast<long long>(totals.evicted));
}

TEST(SchedulerProperty, EveryCallLeavesASoundState) {
  run_many(1000, 80, 400, true, true);
}
TEST(SchedulerProperty, LongRunsWithoutFaultsGiveTheExpectedOutputs) {
  run_many(2000, 40, 3000, false, false);
}
TEST(SchedulerProperty, LongRunsWithAbortsAndFailedStepsGiveTheExpectedOutputs) {
  run_many(3000, 40, 3000, false, true);
}

}  // namespace
}  // namespace hadal::testing
