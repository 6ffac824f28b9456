// Tests retraction: which request gives up its pages, and how it is computed again.
#include <gtest/gtest.h>

#include "scheduler/scheduler.h"
#include "tests/scheduler/scheduler_steps.h"

namespace hadal::testing {

namespace {

TEST(Scheduler, TheLatestArrivalIsRetractedAndComputedAgain) {
  SimulatorOptions options = small(/*num_pages=*/4);
  options.scheduler.conservativeness = 0.01;
  Simulator simulator(options);
  const RequestId first = simulator.add(text(1, 60), 150);
  const RequestId second = simulator.add(text(2, 60), 150);
  BatchPlan plan;
  while (plan.retracted.empty()) plan = step(simulator);
  EXPECT_EQ(plan.retracted, std::vector<RequestId>{second});
  EXPECT_TRUE(simulator.scheduler().is_running(first));
  const auto known = std::ssize(simulator.scheduler().tokens(second));
  EXPECT_GT(known, 120);
  const RequestId later = simulator.add(text(3, 10), 1);
  while (!simulator.scheduler().is_running(second)) {
    plan = step(simulator);
    EXPECT_FALSE(simulator.scheduler().is_running(later)) << "retracted requests go before new ones";
  }
  // The prompt is computed on the prompt's path, and the generated tokens, including the last one, on the
  // other path.
  const std::vector<WorkItem> items = items_of(plan, second);
  const WorkItem& last = items.back();
  EXPECT_EQ(last.kind, WorkKind::kDecode);
  EXPECT_EQ(last.begin + last.num_tokens, known);
  EXPECT_TRUE(last.samples);
  EXPECT_TRUE(items.size() == 1 || (items[0].kind == WorkKind::kPrefill && !items[0].samples));
  simulator.run_to_the_end();
  EXPECT_EQ(simulator.outputs().at(second).size(), 150U);
}

// The longest output is admitted first, so the order of admission is not that of arrival.
TEST(Scheduler, TheLatestArrivalIsRetractedEvenIfItWasAdmittedFirst) {
  SimulatorOptions options = small(/*num_pages=*/6);
  options.scheduler.conservativeness = 0.01;
  options.scheduler.policy = SchedulePolicy::kLof;
  Simulator simulator(options);
  simulator.add(text(1, 60), 110);
  simulator.add(text(2, 60), 100);
  const RequestId latest = simulator.add(text(3, 60), 120);
  BatchPlan plan = step(simulator);
  EXPECT_EQ(plan.ranks[0].items[0].request_id, latest) << "it is admitted first";
  EXPECT_EQ(plan.num_new_requests, 3);
  while (plan.retracted.empty()) plan = step(simulator);
  EXPECT_EQ(plan.retracted, std::vector<RequestId>{latest});
  simulator.run_to_the_end();
}

// Both requests generate the same tokens. The first one ends while the second one waits, and so the cache
// contains more tokens than the second one has.
TEST(Scheduler, ARetractedRequestWhoseTokensAreAllCachedComputesTheLastOne) {
  SimulatorOptions options = small(/*num_pages=*/4);
  options.scheduler.conservativeness = 0.01;
  Simulator simulator(options);
  const RequestId first = simulator.add(text(1, 60), 150);
  const RequestId second = simulator.add(text(1, 60), 150);
  BatchPlan plan;
  while (plan.retracted.empty()) plan = step(simulator);
  ASSERT_EQ(plan.retracted, std::vector<RequestId>{second});
  const auto known = std::ssize(simulator.scheduler().tokens(second));
  while (!simulator.scheduler().is_running(second)) plan = step(simulator);
  EXPECT_EQ(simulator.outputs().at(first).size(), 150U) << "the first one has ended";
  const std::vector<WorkItem> items = items_of(plan, second);
  ASSERT_EQ(items.size(), 1U);
  EXPECT_EQ(items[0].begin, known - 1);
  EXPECT_EQ(items[0].num_tokens, 1);
  EXPECT_TRUE(items[0].samples);
  simulator.run_to_the_end();
}

TEST(Scheduler, RecomputedTokensCountAgainstThePrefillBudget) {
  SimulatorOptions options = small(/*num_pages=*/4);
  options.scheduler.conservativeness = 0.01;
  options.scheduler.enable_radix_cache = false;
  options.scheduler.chunked_prefill_size = 50;
  Simulator simulator(options);
  simulator.add(text(1, 60), 150);
  const RequestId second = simulator.add(text(2, 60), 150);
  while (step(simulator).retracted.empty()) {
  }
  const auto known = std::ssize(simulator.scheduler().tokens(second));
  while (!simulator.scheduler().is_running(second)) step(simulator);
  std::vector<std::pair<WorkKind, int32_t>> work;
  for (const WorkItem& item : items_of(simulator.last_plan(), second))
    work.emplace_back(item.kind, item.num_tokens);
  while (!items_of(simulator.last_plan(), second).back().samples) {
    for (const WorkItem& item : items_of(step(simulator), second))
      work.emplace_back(item.kind, item.num_tokens);
  }
  const auto rest = static_cast<int32_t>(known - 100);
  EXPECT_EQ(work, (std::vector<std::pair<WorkKind, int32_t>>{{WorkKind::kPrefill, 50},
                                                             {WorkKind::kPrefill, 10},
                                                             {WorkKind::kDecode, 40},
                                                             {WorkKind::kDecode, rest}}));
  simulator.run_to_the_end();
}

TEST(Scheduler, UnderPriorityTheLowestIsRetractedButNeverTheOldest) {
  SimulatorOptions options = small(/*num_pages=*/6);
  options.scheduler.conservativeness = 0.01;
  options.scheduler.policy = SchedulePolicy::kPriority;
  Simulator simulator(options);
  const RequestId oldest = simulator.add(text(1, 60), 100, -1, /*priority=*/0);
  step(simulator);
  const RequestId low = simulator.add(text(2, 60), 100, -1, /*priority=*/1);
  const RequestId high = simulator.add(text(3, 60), 100, -1, /*priority=*/5);
  const RequestId high_too = simulator.add(text(4, 60), 100, -1, /*priority=*/5);
  std::vector<RequestId> retracted;
  while (retracted.empty()) retracted = step(simulator).retracted;
  EXPECT_EQ(retracted.front(), low);
  EXPECT_TRUE(simulator.scheduler().is_running(oldest));
  EXPECT_TRUE(simulator.scheduler().is_running(high));
  EXPECT_TRUE(high_too > high);
  simulator.run_to_the_end();
}

TEST(Scheduler, ATokenThatArrivesAfterTheRetractionIsKept) {
  SimulatorOptions options = small(/*num_pages=*/4);
  options.scheduler.conservativeness = 0.01;
  options.overlapped = true;
  Simulator simulator(options);
  simulator.add(text(1, 60), 150);
  simulator.add(text(2, 60), 150);
  simulator.run_to_the_end();
  EXPECT_GT(simulator.scheduler().stats().total_retractions, 0);
  EXPECT_GT(simulator.num_late_tokens(), 0);
}

// A node that ends within a page has its own page for that block in addition to its child's. A lone request
// whose locked path pins such a page needs one page more than the pool has.
TEST(Scheduler, ALoneRequestDropsItsCachedPrefixInsteadOfWaitingForItsOwnLock) {
  for (const int64_t prompt_len : {140, 250}) {
    Simulator simulator(small(/*num_pages=*/4));
    simulator.add(text(1, 96), 1);
    simulator.run_to_the_end();
    simulator.add(join(text(1, 96), text(2, 32)), 1);
    simulator.run_to_the_end();
    simulator.add(join(text(1, 96), text(3, 32)), 1);
    simulator.run_to_the_end();
    const RequestId id =
        simulator.add(join(join(text(1, 96), text(3, 32)), text(4, prompt_len - 128)), 256 - prompt_len);
    step(simulator);
    EXPECT_EQ(simulator.scheduler().cached_tokens(id), prompt_len == 140 ? 128 : 0);
    simulator.run_to_the_end();
    EXPECT_EQ(simulator.scheduler().stats().total_retractions, prompt_len == 140 ? 1 : 0);
    EXPECT_EQ(std::ssize(simulator.outputs().at(id)), 256 - prompt_len);
  }
}

}  // namespace
}  // namespace hadal::testing
