// Tests how long a request waits for a prompt in prefill that begins like its own.
#include <gtest/gtest.h>

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

// With less in common than a page that the cache lacks, waiting would gain little.
TEST(PrefixWait, BeginsOnlyForAWholePage) {
  for (const int64_t num_common : {63, 64}) {
    Scheduler scheduler(in_chunks(4096));
    const std::vector<int32_t> common = text(1, num_common);
    const auto add = [&](RequestId id, uint64_t client, const std::vector<int32_t>& rest) {
      scheduler.add(
          {.id = id, .prompt = join(common, rest), .max_cached_tokens = num_common + 10, .client = client});
    };
    add(1, 7, text(2, 500));
    const BatchPlan first = scheduler.plan();
    add(2, 8, text(3, 20));
    const BatchPlan second = scheduler.plan();
    EXPECT_EQ(scheduler.is_running(2), num_common == 63) << "the first step is still in flight";
    scheduler.complete(first, {});
    if (!second.empty()) scheduler.complete(second, {});
    scheduler.check_integrity();
  }
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

TEST(PrefixWait, ThousandsThatWaitHoldUpNoRequestOfAnotherClient) {
  ClientRequests requests(in_chunks(256));
  const TokenIds prompt = text(1, 5000);
  for (int i = 0; i < 2000; ++i) requests.add({.client = 7, .max_new_tokens = 4}, prompt);
  requests.step();
  const RequestId own = requests.add({.client = 7, .prompt_len = 20, .max_new_tokens = 1});
  const RequestId other = requests.add({.client = 8, .prompt_len = 20, .max_new_tokens = 1});
  requests.step();
  EXPECT_TRUE(requests.has_started(other));
  EXPECT_FALSE(requests.has_started(own)) << "too many of its own client's requests wait ahead of it";
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
