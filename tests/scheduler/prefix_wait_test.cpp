// Tests how long a request waits for a prompt in prefill that begins like its own.
#include <gtest/gtest.h>

#include <random>

#include "scheduler/plan_record.h"
#include "tests/scheduler/client_requests.h"
#include "tests/scheduler/scheduler_steps.h"

namespace hadal::testing {
namespace {

SchedulerOptions in_chunks(int64_t chunk) {
  return {.num_pages = 1000, .max_running_requests = 64, .chunked_prefill_size = chunk};
}

TEST(PrefixWait, EndsWhenTheCommonPagesHaveBeenComputed) {
  ClientRequests requests(in_chunks(128));
  const std::vector<int32_t> common = text(1, 300);  // four whole pages
  const RequestId owner = requests.add({.client = 7, .max_new_tokens = 50}, join(common, text(2, 5000)));
  requests.step();
  const RequestId waits = requests.add({.client = 8, .max_new_tokens = 50}, join(common, text(3, 20)));
  const BatchPlan plan = requests.step();
  EXPECT_FALSE(requests.is_running(waits)) << "128 tokens are computed";
  EXPECT_EQ(plan.num_prefill_tokens, 128) << "the other prompt gets the whole step meanwhile";
  requests.step();
  EXPECT_TRUE(requests.is_running(waits)) << "256 tokens are computed, and 5,044 are not";
  EXPECT_EQ(requests.scheduler().cached_tokens(waits), 256);
  EXPECT_TRUE(requests.is_running(owner));
  requests.run_to_the_end(200);
}

// Plans the first part of a prompt, which then stays in flight, and returns whether the next plan starts
// another client's request with `num_common` equal tokens, of which the first `num_cached` are in the cache.
bool waits_beside_prefill(int64_t num_common, int64_t num_cached, CacheSalt salt = {}) {
  Scheduler scheduler(in_chunks(4096));
  const std::vector<int32_t> common = text(1, num_common);
  const auto add = [&](RequestId id, uint64_t client, int64_t count, const std::vector<int32_t>& rest) {
    std::vector<int32_t> prompt = common;
    prompt.resize(static_cast<size_t>(count));
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    scheduler.add({.id = id,
                   .prompt = prompt,
                   .max_cached_tokens = std::ssize(prompt) - 1,
                   .client = client,
                   .salt = id == 2 ? salt : CacheSalt{}});
  };
  if (num_cached > 0) {
    add(3, 7, num_cached, text(4, 1));
    scheduler.complete(scheduler.plan(), {});
  }
  add(1, 7, num_common, text(2, 500));
  const BatchPlan first = scheduler.plan();
  add(2, 8, num_common, text(3, 20));
  const BatchPlan second = scheduler.plan();
  const bool waits = !scheduler.is_running(2);
  scheduler.complete(first, {});
  if (!second.empty()) scheduler.complete(second, {});
  scheduler.check_integrity();
  return waits;
}

TEST(PrefixWait, BeginsOnlyForAWholePageThatTheCacheLacks) {
  EXPECT_FALSE(waits_beside_prefill(63, 0));
  EXPECT_TRUE(waits_beside_prefill(64, 0));
  EXPECT_FALSE(waits_beside_prefill(64, 64));
  EXPECT_FALSE(waits_beside_prefill(127, 64));
  EXPECT_TRUE(waits_beside_prefill(128, 64));
}

TEST(PrefixWait, DoesNotBeginForAPromptOfAnotherSalt) {
  EXPECT_TRUE(waits_beside_prefill(640, 0));
  EXPECT_FALSE(waits_beside_prefill(640, 0, {.low = 7}));
}

TEST(PrefixWait, NobodyWaitsForAnotherClientsPromptThatStandsStill) {
  ClientRequests requests(in_chunks(128));
  const std::vector<int32_t> common = text(1, 640);
  const RequestId still = requests.add({.client = 7, .max_new_tokens = 1}, join(common, text(2, 1000)));
  requests.step();
  ASSERT_TRUE(requests.is_running(still));
  requests.scheduler().hold(still);
  const RequestId own = requests.add({.client = 7, .max_new_tokens = 1}, join(common, text(3, 20)));
  const RequestId other = requests.add({.client = 8, .max_new_tokens = 1}, join(common, text(4, 20)));
  requests.step();
  EXPECT_TRUE(requests.is_running(other));
  EXPECT_FALSE(requests.is_running(own));
  requests.scheduler().release(still);
  requests.run_to_the_end(200);
}

TEST(PrefixWait, ChoicesOfAPromptWaitForTheFirstOfThem) {
  ClientRequests requests(in_chunks(128));
  const TokenIds prompt = text(1, 1000);
  std::vector<RequestId> choices;
  for (int i = 0; i < 20; ++i) choices.push_back(requests.add({.client = 7, .max_new_tokens = 50}, prompt));
  while (requests.scheduler().stats().num_running < 2) {
    requests.step();
    ASSERT_TRUE(requests.is_running(choices[0]));
  }
  for (int i = 0; i < 3; ++i) requests.step();
  for (size_t i = 1; i < choices.size(); ++i) {
    EXPECT_GE(requests.scheduler().cached_tokens(choices[i]), 960) << i;
  }
  requests.run_to_the_end(200);
}

TEST(PrefixWait, ThousandsThatWaitHoldUpOnlyTheirOwnClient) {
  Scheduler scheduler(in_chunks(1 << 14));
  const TokenIds prompt = text(1, 5000);
  RequestId last_id = 0;
  const auto add = [&](uint64_t client, const TokenIds& ids) {
    scheduler.add({.id = ++last_id,
                   .prompt = ids,
                   .max_cached_tokens = static_cast<int64_t>(ids.size()) - 1,
                   .client = client});
    return last_id;
  };
  add(7, prompt);
  const BatchPlan first = scheduler.plan();
  for (int i = 0; i < 255; ++i) add(7, prompt);
  const RequestId beside_255 = add(7, text(2, 20));
  for (int i = 0; i < 2000; ++i) add(7, prompt);
  const RequestId beside_thousands = add(7, text(3, 20));
  const RequestId other = add(8, text(4, 20));
  const BatchPlan second = scheduler.plan();
  EXPECT_TRUE(scheduler.is_running(beside_255));
  EXPECT_TRUE(scheduler.is_running(other));
  EXPECT_FALSE(scheduler.is_running(beside_thousands)) << "its turn comes in a later step";
  scheduler.complete(first, {});
  scheduler.complete(second, {});
  while (!scheduler.idle()) scheduler.complete(scheduler.plan(), {});
}

// A look-up that one choice of a prompt has made serves the others, but only as long as it would be the same.
TEST(PrefixWait, WhetherRequestsShareTheirIdsChangesNoPlan) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 rng(seed);
    SchedulerOptions options = in_chunks(100);
    options.num_pages = 24;
    options.policy = static_cast<SchedulePolicy>(seed % 4);
    options.conservativeness = 0.3;
    Scheduler shares(options);
    Scheduler copies(options);
    std::vector<TokenIds> prompts;
    for (int32_t i = 0; i < 6; ++i) {
      prompts.emplace_back(join(text(i % 2, static_cast<int64_t>(rng() % 300)), text(10 + i, 40)));
    }
    for (RequestId id = 1; id <= 300; ++id) {
      const TokenIds& prompt = prompts[rng() % prompts.size()];
      ScheduledRequest request = {.id = id,
                                  .prompt = prompt,
                                  .max_new_tokens = static_cast<int64_t>(rng() % 60),
                                  .max_cached_tokens = static_cast<int64_t>(prompt.size()) - 1,
                                  .client = rng() % 3,
                                  .salt = {.low = rng() % 4 == 0 ? 1U : 0U}};
      if (rng() % 3 == 0) request.max_cached_tokens = static_cast<int64_t>(rng() % prompt.size());
      shares.add(request);
      request.prompt = std::vector<int32_t>(prompt.begin(), prompt.end());
      copies.add(request);
      const int64_t num_steps = static_cast<int64_t>(rng() % 8);
      for (int64_t i = 0; i < num_steps && !shares.idle(); ++i) {
        const BatchPlan plan = shares.plan();
        ASSERT_EQ(plan_to_json(plan), plan_to_json(copies.plan())) << "seed " << seed;
        std::vector<ItemOutcome> outcomes;
        for (const WorkItem& item : plan.ranks[0].items) {
          if (item.samples) outcomes.push_back({.request_id = item.request_id, .token = 5});
        }
        shares.complete(plan, outcomes);
        copies.complete(plan, outcomes);
      }
    }
    EXPECT_GT(shares.stats().total_evicted_tokens, 0);
  }
}

TEST(PrefixWait, AFailedStepTakesNoComputedPageFromThoseThatShareIt) {
  SchedulerOptions options = in_chunks(128);
  Scheduler scheduler(options);
  const std::vector<int32_t> common = text(1, 128);
  const auto add = [&](RequestId id, uint64_t client, const std::vector<int32_t>& rest) {
    scheduler.add({.id = id,
                   .prompt = join(common, rest),
                   .max_new_tokens = 0,
                   .max_cached_tokens = 128,
                   .client = client});
  };
  add(1, 7, text(2, 1000));
  scheduler.complete(scheduler.plan(), {});
  add(2, 8, text(3, 40));
  const BatchPlan fails = scheduler.plan();
  EXPECT_TRUE(scheduler.is_running(2));
  EXPECT_EQ(scheduler.cached_tokens(2), 128);
  EXPECT_EQ(scheduler.fail(fails).size(), 2U);
  scheduler.check_integrity();
  add(3, 9, text(4, 40));
  const BatchPlan plan = scheduler.plan();
  EXPECT_EQ(scheduler.cached_tokens(3), 128) << "an earlier step has computed these pages";
  scheduler.complete(plan, {});
  EXPECT_TRUE(scheduler.idle());
  scheduler.check_integrity();
}

}  // namespace
}  // namespace hadal::testing
