// Tests admission: the order of the queue, memory, and prefixes that are still being computed.
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
  const RequestId first = simulator.add(join(text(1, 260), text(2, 20)), 5);
  const RequestId second = simulator.add(join(text(1, 260), text(3, 20)), 5);
  const RequestId other = simulator.add(text(4, 40), 5);
  step(simulator);
  step(simulator);
  EXPECT_FALSE(simulator.scheduler().is_running(second));
  step(simulator);
  EXPECT_TRUE(simulator.scheduler().is_running(other)) << "a request that shares nothing overtakes";
  EXPECT_FALSE(simulator.scheduler().is_running(second));
  step(simulator);
  EXPECT_TRUE(simulator.scheduler().is_running(second));
  EXPECT_EQ(simulator.scheduler().cached_tokens(second), 260);
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

TEST(Scheduler, RequestsOfOtherSaltsNeitherWaitForAPrefixNorGetIt) {
  Scheduler scheduler({.num_pages = 64, .chunked_prefill_size = 100});
  const auto add = [&](RequestId id, CacheSalt salt) {
    scheduler.add(
        {.id = id, .prompt = text(1, 200), .max_new_tokens = 0, .max_cached_tokens = 199, .salt = salt});
  };
  const auto run_step = [&] {
    const BatchPlan plan = scheduler.plan();
    if (!plan.empty()) scheduler.complete(plan, {});
    scheduler.check_integrity();
  };
  add(1, {});
  run_step();  // the first half of its prompt
  add(2, {});
  add(3, {.low = 7});
  run_step();
  EXPECT_FALSE(scheduler.is_running(2)) << "it waits for the prefix";
  run_step();
  EXPECT_TRUE(scheduler.is_running(3));
  EXPECT_EQ(scheduler.cached_tokens(3), 0);
  while (!scheduler.idle()) run_step();
  add(4, {.low = 7});
  add(5, {.low = 8});
  run_step();
  run_step();
  EXPECT_TRUE(scheduler.is_running(5));
  EXPECT_EQ(scheduler.cached_tokens(5), 0);
  while (!scheduler.idle()) run_step();
  EXPECT_EQ(scheduler.stats().total_cached_tokens, 199 + 199) << "of requests 2 and 4";
}

TEST(Scheduler, ACountOfCachedTokensIsRoundedToPagesForAnotherClient) {
  Scheduler scheduler({.num_pages = 64});
  const auto told = [&](RequestId id, uint64_t client, int64_t guessed) {
    scheduler.add({.id = id,
                   .prompt = join(text(1, guessed), text(static_cast<int32_t>(id), 5)),
                   .max_new_tokens = 1,
                   .max_cached_tokens = guessed + 4,
                   .client = client});
    const BatchPlan plan = scheduler.plan();
    EXPECT_EQ(plan.num_cached_tokens, id == 10 ? 0 : guessed) << "the work itself is saved";
    const int64_t count = scheduler.cached_tokens(id);
    scheduler.complete(plan, std::vector<ItemOutcome>{{.request_id = id, .token = 9, .finished = true}});
    return count;
  };
  EXPECT_EQ(told(10, /*client=*/1, 200), 0);
  EXPECT_EQ(told(11, /*client=*/1, 150), 150);
  EXPECT_EQ(told(12, /*client=*/2, 190), 128);
  EXPECT_EQ(told(13, /*client=*/2, 191), 128 + 62) << "it has inserted the first 190 tokens itself";
  EXPECT_EQ(told(14, /*client=*/3, 64), 64);
  EXPECT_EQ(scheduler.stats().total_cached_tokens, 150 + 128 + 190 + 64) << "everybody may read the sum";
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
