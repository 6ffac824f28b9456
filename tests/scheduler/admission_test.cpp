// Admission: the order of the queue, memory, and prefixes that are still being computed.
#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler/scheduler.h"
#include "tests/scheduler/scheduler_steps.h"

namespace hadal::testing {

namespace {

// Returns the order in which the waiting requests are admitted, one at a time.
std::vector<RequestId> order_of_admission(SchedulePolicy policy, const std::vector<int32_t>& priorities,
                                          const std::vector<int64_t>& max_new, bool low_first = false) {
  SimulatorOptions options = small();
  options.scheduler.policy = policy;
  options.scheduler.low_priority_values_first = low_first;
  options.scheduler.max_running_requests = 1;
  Simulator simulator(options);
  for (size_t i = 0; i < priorities.size(); ++i) {
    simulator.add(text(static_cast<int32_t>(i), 10), max_new[i], -1, priorities[i]);
  }
  std::vector<RequestId> order;
  while (!simulator.scheduler().idle()) {
    for (const WorkItem& item : step(simulator).ranks[0].items) {
      if (item.starts_slot) order.push_back(item.request_id);
    }
  }
  return order;
}

TEST(Scheduler, ALargePromptAtTheHeadIsNotOvertakenWhileItWaitsForMemory) {
  Simulator simulator(small(/*num_pages=*/8));
  simulator.add(text(1, 200), 60);
  step(simulator);
  const RequestId large = simulator.add(text(2, 400), 10);
  const RequestId little = simulator.add(text(3, 10), 10);
  step(simulator);
  EXPECT_FALSE(simulator.scheduler().is_running(large));
  EXPECT_FALSE(simulator.scheduler().is_running(little));
  simulator.run_to_the_end();
}

TEST(Scheduler, HigherConservativenessAdmitsFewerRequests) {
  const auto num_admitted = [](double conservativeness) {
    SimulatorOptions options = small(/*num_pages=*/10);
    options.scheduler.conservativeness = conservativeness;
    Simulator simulator(options);
    for (int32_t i = 0; i < 8; ++i) simulator.add(text(i, 60), 200);
    return step(simulator).num_new_requests;
  };
  EXPECT_LT(num_admitted(10.0), num_admitted(0.5));
  EXPECT_EQ(num_admitted(10.0), 2) << "60 + 200 tokens are 5 pages, all reserved";
  EXPECT_EQ(num_admitted(0.01), 8);
}

TEST(Scheduler, NoPageIsReservedForTheLastTokenBecauseItIsNeverComputed) {
  SimulatorOptions options = small(/*num_pages=*/4);
  options.scheduler.conservativeness = 10.0;  // the whole output is reserved
  Simulator simulator(options);
  for (int32_t i = 0; i < 2; ++i) simulator.add(text(i, 60), 69);
  EXPECT_EQ(step(simulator).num_new_requests, 2) << "128 of 60 + 69 tokens are computed, which are 2 pages";
  simulator.run_to_the_end();
  EXPECT_EQ(simulator.scheduler().stats().total_retractions, 0);
}

TEST(Scheduler, APrefixSharedWithAPromptInPrefillIsComputedOnce) {
  SimulatorOptions options = small();
  options.scheduler.chunked_prefill_size = 100;
  Simulator simulator(options);
  const RequestId first = simulator.add(join(text(1, 200), text(2, 30)), 5);
  const RequestId second = simulator.add(join(text(1, 200), text(3, 30)), 5);
  const RequestId other = simulator.add(text(4, 40), 5);
  step(simulator);
  step(simulator);
  EXPECT_FALSE(simulator.scheduler().is_running(second));
  step(simulator);
  EXPECT_TRUE(simulator.scheduler().is_running(other)) << "a request that shares nothing overtakes";
  EXPECT_FALSE(simulator.scheduler().is_running(second));
  step(simulator);
  EXPECT_TRUE(simulator.scheduler().is_running(second));
  EXPECT_EQ(simulator.scheduler().cached_tokens(second), 200);
  EXPECT_EQ(simulator.scheduler().cached_tokens(first), 0);
  simulator.run_to_the_end();
}

TEST(Scheduler, ARequestThatWaitsForAPrefixContinuesWhenItsOwnerIsAborted) {
  SimulatorOptions options = small();
  options.scheduler.chunked_prefill_size = 64;
  Simulator simulator(options);
  const RequestId first = simulator.add(join(text(1, 200), text(2, 30)), 5);
  const RequestId second = simulator.add(join(text(1, 200), text(3, 30)), 5);
  step(simulator);
  simulator.abort(first);
  step(simulator);
  EXPECT_TRUE(simulator.scheduler().is_running(second));
  EXPECT_EQ(simulator.scheduler().cached_tokens(second), 64)
      << "what the aborted request computed stays cached";
  simulator.run_to_the_end();
}

TEST(Scheduler, PoliciesOrderTheQueue) {
  const std::vector<int32_t> priorities = {1, 3, 2, 3};
  const std::vector<int64_t> max_new = {2, 1, 4, 3};
  EXPECT_EQ(order_of_admission(SchedulePolicy::kFcfs, priorities, max_new),
            (std::vector<RequestId>{1, 2, 3, 4}));
  EXPECT_EQ(order_of_admission(SchedulePolicy::kPriority, priorities, max_new),
            (std::vector<RequestId>{2, 4, 3, 1}));
  EXPECT_EQ(order_of_admission(SchedulePolicy::kPriority, priorities, max_new, /*low_first=*/true),
            (std::vector<RequestId>{1, 3, 2, 4}));
  EXPECT_EQ(order_of_admission(SchedulePolicy::kLof, priorities, max_new),
            (std::vector<RequestId>{3, 4, 1, 2}));
}

TEST(Scheduler, LongestPrefixGoesFirstAmongTheFirst128) {
  SimulatorOptions options = small(/*num_pages=*/400);
  options.scheduler.policy = SchedulePolicy::kLpm;
  options.scheduler.max_running_requests = 1;
  options.check_always = false;
  Simulator simulator(options);
  simulator.add(text(1000, 200), 1);
  simulator.run_to_the_end();
  for (int32_t i = 0; i < 126; ++i) simulator.add(text(i, 10), 1);
  const RequestId half = simulator.add(text(1000, 100), 1);
  const RequestId whole = simulator.add(text(1000, 190), 1);
  const RequestId too_far = simulator.add(text(1000, 200), 1);
  EXPECT_EQ(step(simulator).ranks[0].items[0].request_id, whole);
  EXPECT_EQ(step(simulator).ranks[0].items[0].request_id, too_far) << "it moved up by one place";
  EXPECT_EQ(step(simulator).ranks[0].items[0].request_id, half);
  simulator.run_to_the_end();
}

TEST(Scheduler, ARequestIsOvertakenOnly256Times) {
  SimulatorOptions options = small();
  options.scheduler.policy = SchedulePolicy::kPriority;
  options.scheduler.max_running_requests = 1;
  options.check_always = false;
  Simulator simulator(options);
  const RequestId low = simulator.add(text(1, 10), 1, -1, /*priority=*/-1);
  simulator.add(text(2, 10), 1, -1, 0);
  int num_overtaken = 0;
  for (;; ++num_overtaken) {
    simulator.add(text(2, 10), 1, -1, 0);
    if (step(simulator).ranks[0].items[0].request_id == low) break;
    ASSERT_LE(num_overtaken, 1000);
  }
  EXPECT_EQ(num_overtaken, 256);
  simulator.run_to_the_end();
}

TEST(Scheduler, PolicyNamesAreParsedAndAnErrorNamesTheField) {
  EXPECT_EQ(*parse_schedule_policy("lof", "--schedule-policy"), SchedulePolicy::kLof);
  const auto unknown = parse_schedule_policy("random", "--schedule-policy");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().message, "--schedule-policy is 'random'; allowed are fcfs, lpm, priority, lof");
}

}  // namespace
}  // namespace hadal::testing
