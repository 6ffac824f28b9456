// Tests the scheduler's rules one by one: budgets, pages, the cache, and the ends of requests. See also
// admission_test.cpp and retraction_test.cpp.
#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include "tests/scheduler/scheduler_steps.h"

namespace hadal::testing {

namespace {

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

TEST(Scheduler, ADecodeGetsAPageOnlyWhereABlockBegins) {
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

TEST(Scheduler, NoItemIsPlannedBeyondMaxNewTokensWhileTokensAreUnknown) {
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

TEST(Scheduler, APromptWithoutOutputEndsWithAnEndingItem) {
  Simulator simulator(small());
  const RequestId id = simulator.add(text(1, 100), 0);
  const BatchPlan& plan = step(simulator);
  ASSERT_EQ(plan.ranks[0].items.size(), 1U);
  EXPECT_TRUE(plan.ranks[0].items[0].ends_request);
  EXPECT_FALSE(plan.ranks[0].items[0].samples);
  EXPECT_TRUE(simulator.scheduler().idle());
  EXPECT_FALSE(simulator.scheduler().is_running(id));
  // Other requests may use the pages that this one computed.
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

TEST(Scheduler, APartlyMatchedPageIsCopiedAndWholePagesAreShared) {
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

TEST(Scheduler, MaxCachedTokensLimitsTheCachedPrefix) {
  Simulator simulator(small());
  simulator.add(text(1, 300), 1);
  simulator.run_to_the_end();
  const RequestId id = simulator.add(text(1, 300), 5, /*max_cached_tokens=*/70);
  EXPECT_EQ(items_of(step(simulator), id)[0].begin, 70);
  simulator.run_to_the_end();
}

TEST(Scheduler, AbortRemovesARequestInAnyState) {
  SimulatorOptions options = small(/*num_pages=*/4);
  options.scheduler.conservativeness = 0.01;
  options.scheduler.chunked_prefill_size = 50;
  options.overlapped = true;
  // After this many rounds the second request waits, is in prefill, decodes or is retracted.
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

TEST(Scheduler, AnAbortedRequestLeavesNothingInTheCacheThatAStepInFlightMayOverwrite) {
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

TEST(Scheduler, FlushRemovesWhatNoRunningRequestUses) {
  Simulator simulator(small());
  simulator.add(text(1, 128), 5);
  simulator.run_to_the_end();
  EXPECT_GT(simulator.scheduler().stats().num_cached_pages, 0);
  simulator.scheduler().flush_cache();
  EXPECT_EQ(simulator.scheduler().stats().num_free_pages, 64);
}

TEST(Scheduler, BrokenPreconditionsThrow) {
  Simulator simulator(small(/*num_pages=*/2));
  EXPECT_THROW(simulator.add({}, 1), Error);
  EXPECT_THROW(simulator.add(text(1, 100), 29), Error) << "129 tokens in 2 pages";
  EXPECT_THROW(simulator.scheduler().complete({}, {}), Error) << "no step is in flight";
  EXPECT_THROW(static_cast<void>(simulator.scheduler().tokens(77)), Error);
}

}  // namespace
}  // namespace hadal::testing
