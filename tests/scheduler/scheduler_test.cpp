// The scheduler's rules, one by one.
#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/scheduler/simulator.h"

namespace hadal::testing {
namespace {

// `count` tokens that no other `stream` has.
std::vector<int32_t> text(int32_t stream, int64_t count) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), stream * 100'000);
  return tokens;
}

std::vector<int32_t> join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

SimulatorOptions small(int64_t num_pages = 64) {
  SimulatorOptions options;
  options.scheduler.num_pages = num_pages;
  options.scheduler.max_running_requests = 8;
  options.check_always = true;
  return options;
}

std::vector<WorkItem> items_of(const BatchPlan& plan, RequestId id) {
  std::vector<WorkItem> result;
  for (const WorkItem& item : plan.ranks[0].items) {
    if (item.request_id == id) result.push_back(item);
  }
  return result;
}

// Plans and completes a step.
const BatchPlan& step(Simulator& simulator) {
  EXPECT_TRUE(simulator.plan());
  simulator.complete_oldest();
  return simulator.last_plan();
}

// Order in which the requests that wait now are admitted, one at a time.
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

TEST(Scheduler, DecodesGetATokenInEveryStepOfALongPrompt) {
  SimulatorOptions options = small();
  options.scheduler.chunked_prefill_size = 100;
  Simulator simulator(options);
  const RequestId decoding = simulator.add(text(1, 10), 50);
  step(simulator);
  const RequestId prompt = simulator.add(text(2, 450), 1);
  for (const int64_t chunk : {100, 100, 100, 100, 50}) {
    const BatchPlan& plan = step(simulator);
    ASSERT_EQ(items_of(plan, decoding).size(), 1U);
    ASSERT_EQ(items_of(plan, prompt).size(), 1U);
    EXPECT_EQ(items_of(plan, prompt)[0].num_tokens, chunk);
    EXPECT_EQ(plan.ranks[0].items[0].request_id, prompt) << "prefill items come first";
    EXPECT_EQ(items_of(plan, prompt)[0].samples, chunk == 50);
  }
}

TEST(Scheduler, PromptsFillTheBudgetInOrderOfAdmission) {
  SimulatorOptions options = small();
  options.scheduler.chunked_prefill_size = 100;
  Simulator simulator(options);
  for (int32_t i = 1; i <= 3; ++i) simulator.add(text(i, 70), 1);
  const BatchPlan first = step(simulator);
  EXPECT_EQ(items_of(first, 1)[0].num_tokens, 70);
  EXPECT_EQ(items_of(first, 2)[0].num_tokens, 30);
  EXPECT_TRUE(items_of(first, 3).empty());
  const BatchPlan second = step(simulator);
  EXPECT_EQ(items_of(second, 2)[0].num_tokens, 40);
  EXPECT_EQ(items_of(second, 3)[0].num_tokens, 60);
}

TEST(Scheduler, MaxPrefillTokensBoundsTheChunkToo) {
  SimulatorOptions options = small();
  options.scheduler.max_prefill_tokens = 30;
  Simulator simulator(options);
  simulator.add(text(1, 70), 1);
  EXPECT_EQ(step(simulator).num_prefill_tokens, 30);
}

TEST(Scheduler, UncutPromptsStayWithinTheBudgetUnlessAlone) {
  SimulatorOptions options = small();
  options.scheduler.chunked_prefill_size = -1;
  options.scheduler.max_prefill_tokens = 100;
  Simulator simulator(options);
  simulator.add(text(1, 60), 1);
  simulator.add(text(2, 60), 1);
  simulator.add(text(3, 300), 1);
  simulator.add(text(4, 10), 1);
  EXPECT_EQ(step(simulator).num_prefill_tokens, 60);
  EXPECT_EQ(step(simulator).num_prefill_tokens, 60);
  EXPECT_EQ(step(simulator).num_prefill_tokens, 300) << "alone it may exceed the budget, uncut";
  EXPECT_EQ(step(simulator).num_prefill_tokens, 10);
}

TEST(Scheduler, ADecodeTakesAPageOnlyWhereABlockBegins) {
  Simulator simulator(small());
  const RequestId id = simulator.add(text(1, 60), 80);
  EXPECT_EQ(step(simulator).ranks[0].new_pages.size(), 1U);
  for (int64_t position = 60; position < 60 + 79; ++position) {
    const BatchPlan& plan = step(simulator);
    ASSERT_EQ(items_of(plan, id)[0].begin, position);
    EXPECT_EQ(plan.ranks[0].new_pages.size(), position % 64 == 0 ? 1U : 0U);
  }
  EXPECT_TRUE(simulator.scheduler().idle());
}

TEST(Scheduler, NoItemIsPlannedBeyondMaxNewTokensThoughTokensAreUnknown) {
  SimulatorOptions options = small();
  options.overlapped = true;
  Simulator simulator(options);
  simulator.add(text(1, 10), 2);
  ASSERT_TRUE(simulator.plan());
  ASSERT_TRUE(simulator.plan());
  EXPECT_TRUE(items_of(simulator.last_plan(), 1)[0].input_from_previous);
  simulator.complete_oldest();
  EXPECT_FALSE(simulator.plan());
  simulator.complete_oldest();
  EXPECT_TRUE(simulator.scheduler().idle());
  EXPECT_EQ(simulator.outputs().at(1).size(), 2U);
}

TEST(Scheduler, APromptWithoutOutputEndsWithAnItemThatSaysSo) {
  Simulator simulator(small());
  const RequestId id = simulator.add(text(1, 100), 0);
  const BatchPlan& plan = step(simulator);
  ASSERT_EQ(plan.ranks[0].items.size(), 1U);
  EXPECT_TRUE(plan.ranks[0].items[0].ends_request);
  EXPECT_FALSE(plan.ranks[0].items[0].samples);
  EXPECT_TRUE(simulator.scheduler().idle());
  EXPECT_FALSE(simulator.scheduler().is_running(id));
  // What it computed is there for others.
  simulator.add(text(1, 100), 1);
  EXPECT_EQ(step(simulator).num_cached_tokens, 99);
}

TEST(Scheduler, AtLeastTheLastKnownTokenIsComputed) {
  Simulator simulator(small());
  simulator.add(text(1, 128), 1);
  simulator.run_to_the_end();
  const RequestId again = simulator.add(text(1, 128), 1);
  const BatchPlan& plan = step(simulator);
  EXPECT_EQ(items_of(plan, again)[0].begin, 127);
  EXPECT_EQ(plan.num_cached_tokens, 127);
}

TEST(Scheduler, ThePartlyMatchedPageIsCopiedWholeOnesAreShared) {
  Simulator simulator(small());
  simulator.add(join(text(1, 100), text(2, 50)), 20);
  simulator.run_to_the_end();
  const RequestId id = simulator.add(join(text(1, 100), text(3, 50)), 20);
  const BatchPlan& plan = step(simulator);
  ASSERT_EQ(plan.ranks[0].copies.size(), 1U);
  EXPECT_EQ(plan.ranks[0].copies[0].num_rows, 100 - 64);
  EXPECT_EQ(items_of(plan, id)[0].begin, 100);
  EXPECT_EQ(simulator.scheduler().cached_tokens(id), 100);
  simulator.run_to_the_end();
}

TEST(Scheduler, MaxCachedTokensLimitsWhatTheCacheGives) {
  Simulator simulator(small());
  simulator.add(text(1, 300), 1);
  simulator.run_to_the_end();
  const RequestId id = simulator.add(text(1, 300), 5, /*max_cached_tokens=*/70);
  EXPECT_EQ(items_of(step(simulator), id)[0].begin, 70);
  simulator.run_to_the_end();
}

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
  // The prompt on the prompt's path, what was generated on the other, up to and including the last token.
  const std::vector<WorkItem> items = items_of(plan, second);
  const WorkItem& last = items.back();
  EXPECT_EQ(last.kind, WorkKind::kDecode);
  EXPECT_EQ(last.begin + last.num_tokens, known);
  EXPECT_TRUE(last.samples);
  EXPECT_TRUE(items.size() == 1 || (items[0].kind == WorkKind::kPrefill && !items[0].samples));
  simulator.run_to_the_end();
  EXPECT_EQ(simulator.outputs().at(second).size(), 150U);
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

TEST(Scheduler, ATokenThatArrivesAfterTheRetractionIsTaken) {
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

// Nodes that end within a page hold their own page of that block beside their child's. A lone request whose
// locked path pins such a page needs one more than the pool has.
TEST(Scheduler, ALoneRequestGivesUpItsCachedPrefixRatherThanWaitForItsOwnLock) {
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

TEST(Scheduler, ALargePromptAtTheHeadIsNotOvertakenForWantOfMemory) {
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

TEST(Scheduler, ConservativenessAdmitsFewer) {
  const auto num_admitted = [](double conservativeness) {
    SimulatorOptions options = small(/*num_pages=*/10);
    options.scheduler.conservativeness = conservativeness;
    Simulator simulator(options);
    for (int32_t i = 0; i < 8; ++i) simulator.add(text(i, 60), 200);
    return step(simulator).num_new_requests;
  };
  EXPECT_LT(num_admitted(10.0), num_admitted(0.5));
  EXPECT_EQ(num_admitted(10.0), 2) << "60 + 200 tokens are 5 pages; all set aside";
  EXPECT_EQ(num_admitted(0.01), 8);
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
  EXPECT_TRUE(simulator.scheduler().is_running(other)) << "who shares nothing passes";
  EXPECT_FALSE(simulator.scheduler().is_running(second));
  step(simulator);
  EXPECT_TRUE(simulator.scheduler().is_running(second));
  EXPECT_EQ(simulator.scheduler().cached_tokens(second), 200);
  EXPECT_EQ(simulator.scheduler().cached_tokens(first), 0);
  simulator.run_to_the_end();
}

TEST(Scheduler, WhoWaitsForAPrefixGoesOnWhenItsOwnerIsAborted) {
  SimulatorOptions options = small();
  options.scheduler.chunked_prefill_size = 64;
  Simulator simulator(options);
  const RequestId first = simulator.add(join(text(1, 200), text(2, 30)), 5);
  const RequestId second = simulator.add(join(text(1, 200), text(3, 30)), 5);
  step(simulator);
  simulator.abort(first);
  step(simulator);
  EXPECT_TRUE(simulator.scheduler().is_running(second));
  EXPECT_EQ(simulator.scheduler().cached_tokens(second), 64) << "what the aborted one computed stays";
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
  EXPECT_EQ(step(simulator).ranks[0].items[0].request_id, too_far) << "one place further now";
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

TEST(Scheduler, AbortTakesARequestOutOfAnyState) {
  SimulatorOptions options = small(/*num_pages=*/4);
  options.scheduler.conservativeness = 0.01;
  options.scheduler.chunked_prefill_size = 50;
  options.overlapped = true;
  // After so many rounds the second request waits, is in prefill, decodes, is retracted.
  for (int rounds = 0; rounds < 200; ++rounds) {
    Simulator simulator(options);
    simulator.add(text(1, 60), 100);
    const RequestId second = simulator.add(text(2, 60), 100);
    for (int i = 0; i < rounds && simulator.round(); ++i) {
    }
    if (simulator.outputs().contains(second) && simulator.outputs().at(second).size() == 100) break;
    simulator.abort(second);
    EXPECT_FALSE(simulator.scheduler().abort(second));
    simulator.run_to_the_end();
  }
}

TEST(Scheduler, WhatAFailedStepComputedIsNotCached) {
  SimulatorOptions options = small();
  options.scheduler.chunked_prefill_size = 64;
  Simulator simulator(options);
  simulator.add(text(1, 128), 5);
  step(simulator);
  ASSERT_TRUE(simulator.plan(/*fails=*/true));
  simulator.complete_oldest();
  EXPECT_TRUE(simulator.scheduler().idle());
  EXPECT_EQ(simulator.scheduler().stats().num_free_pages, 64);
}

TEST(Scheduler, AnAbortedRequestLeavesNothingInTheCacheThatAStepUnderWayMayStillSpoil) {
  Simulator simulator(small());
  const RequestId id = simulator.add(text(1, 128), 5);
  ASSERT_TRUE(simulator.plan(/*fails=*/true));
  simulator.abort(id);
  EXPECT_EQ(simulator.scheduler().stats().num_free_pages, 64);
  simulator.complete_oldest();
  EXPECT_TRUE(simulator.scheduler().idle());
}

TEST(Scheduler, WithoutCachedOutputsOnlyPromptsAreKept) {
  for (const bool cache_generated : {false, true}) {
    SimulatorOptions options = small();
    options.scheduler.cache_generated_tokens = cache_generated;
    Simulator simulator(options);
    const RequestId id = simulator.add(text(1, 100), 100);
    simulator.run_to_the_end();
    simulator.add(simulator.expected(id).tokens, 1);
    EXPECT_EQ(step(simulator).num_cached_tokens, cache_generated ? 199 : 100);
    simulator.run_to_the_end();
  }
}

TEST(Scheduler, FlushForgetsWhatNobodyUses) {
  Simulator simulator(small());
  simulator.add(text(1, 128), 5);
  simulator.run_to_the_end();
  EXPECT_GT(simulator.scheduler().stats().num_cached_pages, 0);
  simulator.scheduler().flush_cache();
  EXPECT_EQ(simulator.scheduler().stats().num_free_pages, 64);
}

TEST(Scheduler, BrokenPromisesAreRefused) {
  Simulator simulator(small(/*num_pages=*/2));
  EXPECT_THROW(simulator.add({}, 1), Error);
  EXPECT_THROW(simulator.add(text(1, 100), 29), Error) << "129 tokens in 2 pages";
  EXPECT_THROW(simulator.scheduler().complete({}, {}), Error) << "no step is under way";
  EXPECT_THROW(static_cast<void>(simulator.scheduler().tokens(77)), Error);
}

TEST(Scheduler, PolicyNames) {
  EXPECT_EQ(*parse_schedule_policy("lof", "--schedule-policy"), SchedulePolicy::kLof);
  const auto unknown = parse_schedule_policy("random", "--schedule-policy");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().message,
            "--schedule-policy is 'random': one of fcfs, lpm, priority, lof is allowed");
}

}  // namespace
}  // namespace hadal::testing
