// Tests which slots and pages a client leaves to other clients, and how prompts of several clients share a
// step.
#include "scheduler/client_shares.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "scheduler/scheduler.h"

namespace hadal {
namespace {

TEST(ClientShares, AClientAloneMayTakeEverything) {
  ClientShares shares(64, 1000);
  for (int i = 0; i < 60; ++i) shares.start(7, 1);
  for (int64_t step = 0; step < 100; ++step) shares.see(7, step);
  EXPECT_FALSE(shares.must_leave_room(7, 100));
}

TEST(ClientShares, AClientWithAnEighthMustLeaveRoomForOthers) {
  ClientShares shares(64, 1000);
  EXPECT_EQ(shares.kept_slots(), 8);
  EXPECT_EQ(shares.kept_pages(), 125);
  for (int i = 0; i < 8; ++i) shares.start(7, 1);
  for (int i = 0; i < 7; ++i) shares.start(8, 1);
  shares.see(8, 1);
  shares.see(7, 1);
  EXPECT_TRUE(shares.must_leave_room(7, 1));
  EXPECT_FALSE(shares.must_leave_room(8, 1)) << "it holds fewer";
  shares.stop(7, 1);
  EXPECT_FALSE(shares.must_leave_room(7, 1));
}

TEST(ClientShares, ManyPagesBindAClientWithFewSlots) {
  ClientShares shares(64, 800);
  shares.start(7, 99);
  shares.see(7, 1);
  shares.see(8, 1);
  EXPECT_FALSE(shares.must_leave_room(7, 1));
  shares.grow(7);
  EXPECT_TRUE(shares.must_leave_room(7, 1));
}

TEST(ClientShares, OtherClientsAreForgotten) {
  ClientShares shares(64, 1000);
  for (int i = 0; i < 9; ++i) shares.start(7, 1);
  shares.see(8, 1);
  for (int64_t step = 2; step <= 1 + ClientShares::kCompanySteps; ++step) shares.see(7, step);
  EXPECT_TRUE(shares.must_leave_room(7, 1 + ClientShares::kCompanySteps));
  EXPECT_FALSE(shares.must_leave_room(7, 2 + ClientShares::kCompanySteps));
}

TEST(ClientShares, RequestsWithoutAClientDoNotCountAsAnother) {
  ClientShares shares(64, 1000);
  for (int i = 0; i < 9; ++i) shares.start(7, 1);
  shares.see(0, 1);
  shares.see(7, 2);
  shares.see(0, 3);
  EXPECT_FALSE(shares.must_leave_room(7, 3));
}

TEST(ClientShares, FewSlotsAreNotDivided) {
  ClientShares shares(7, 1000);
  shares.start(7, 1);
  shares.see(8, 1);
  EXPECT_FALSE(shares.must_leave_room(7, 1));
  EXPECT_EQ(shares.kept_pages(), 0);
}

// Runs requests of several clients, whose prompts share no prefix.
class Shared : public ::testing::Test {
 protected:
  void start(int64_t slots, int64_t pages, SchedulePolicy policy = SchedulePolicy::kFcfs) {
    scheduler_ = std::make_unique<Scheduler>(SchedulerOptions{
        .num_pages = pages, .max_running_requests = slots, .chunked_prefill_size = 512, .policy = policy});
  }
  void add(RequestId id, uint64_t client, int64_t prompt_len, int64_t max_new_tokens) {
    std::vector<int32_t> prompt(static_cast<size_t>(prompt_len));
    std::iota(prompt.begin(), prompt.end(), static_cast<int32_t>(id) * 100'000);
    scheduler_->add({.id = id,
                     .prompt = std::move(prompt),
                     .max_new_tokens = max_new_tokens,
                     .max_cached_tokens = prompt_len - 1,
                     .client = client});
  }
  BatchPlan step() {
    BatchPlan plan = scheduler_->plan();
    scheduler_->check_integrity();
    std::vector<ItemOutcome> outcomes;
    for (const WorkItem& item : plan.ranks[0].items) {
      running_.insert(item.request_id);
      if (item.samples) outcomes.push_back({.request_id = item.request_id, .token = 7});
    }
    scheduler_->complete(plan, outcomes);
    return plan;
  }
  static int64_t tokens_of(const BatchPlan& plan, RequestId id) {
    int64_t count = 0;
    for (const WorkItem& item : plan.ranks[0].items) count += item.request_id == id ? item.num_tokens : 0;
    return count;
  }

  std::unique_ptr<Scheduler> scheduler_;
  std::set<RequestId> running_;  // those that have been in a step
};

TEST_F(Shared, AFloodLeavesSlotsToAClientThatComesBack) {
  for (const auto policy :
       {SchedulePolicy::kFcfs, SchedulePolicy::kLpm, SchedulePolicy::kPriority, SchedulePolicy::kLof}) {
    start(/*slots=*/16, /*pages=*/1000, policy);
    add(1, 8, 5, 1);
    step();
    for (RequestId id = 100; id < 500; ++id) add(id, 7, 5, 1000);
    for (int i = 0; i < 20; ++i) step();
    EXPECT_EQ(scheduler_->stats().num_running, 14);
    add(2, 8, 5, 1);
    EXPECT_EQ(tokens_of(step(), 2), 5) << "it starts in the next step";
  }
}

TEST_F(Shared, AClientsLargeRequestIsNotOvertakenByItsOwnSmallOnes) {
  start(/*slots=*/16, /*pages=*/100);
  add(1, 8, 5, 1);
  step();
  add(2, 7, 64, 3);
  add(3, 7, 64, 3);
  step();
  add(4, 7, 64 * 89, 1);
  RequestId next = 100;
  for (int i = 0; i < 40 && !running_.contains(4); ++i) {
    add(next++, 7, 64, 3);
    step();
  }
  EXPECT_TRUE(running_.contains(4));
  EXPECT_FALSE(running_.contains(100)) << "it came later";
}

TEST_F(Shared, AClientWithoutCompanyUsesAllSlots) {
  start(/*slots=*/16, /*pages=*/1000);
  for (RequestId id = 100; id < 140; ++id) add(id, 7, 5, 1000);
  step();
  EXPECT_EQ(scheduler_->stats().num_running, 16);
}

TEST_F(Shared, AFloodLeavesPagesToAClientThatComesBack) {
  start(/*slots=*/64, /*pages=*/80);
  add(1, 8, 5, 1);
  step();
  for (RequestId id = 100; id < 140; ++id) add(id, 7, 64 * 4, 60);
  for (int i = 0; i < 20; ++i) step();
  const SchedulerStats stats = scheduler_->stats();
  EXPECT_GT(stats.num_queued, 0);
  EXPECT_GE(stats.num_free_pages + stats.num_cached_pages, 10);
  add(2, 8, 64 * 3, 1);
  EXPECT_EQ(tokens_of(step(), 2), 64 * 3);
}

TEST_F(Shared, AShortPromptStartsBesideAnotherClientsLongOne) {
  start(/*slots=*/16, /*pages=*/1000);
  add(1, 7, 5000, 10);
  EXPECT_EQ(tokens_of(step(), 1), 512);
  add(2, 8, 200, 10);
  const BatchPlan plan = step();
  EXPECT_EQ(tokens_of(plan, 2), 200);
  EXPECT_EQ(tokens_of(plan, 1), 312) << "the long one gets the rest";
}

TEST_F(Shared, ALongPromptGetsHalfOfEachChunkHoweverManyShortOnesCome) {
  start(/*slots=*/64, /*pages=*/4000);
  add(1, 7, 5000, 10);
  step();
  for (RequestId id = 2; id < 42; ++id) add(id, id, 100, 1);  // each of another client
  int64_t computed = 512;
  while (computed < 5000) {
    const int64_t count = tokens_of(step(), 1);
    ASSERT_GE(count, std::min<int64_t>(256, 5000 - computed));
    computed += count;
  }
  EXPECT_EQ(running_.size(), 41U);
}

TEST_F(Shared, AClientsSecondShortPromptWaitsForItsTurn) {
  start(/*slots=*/16, /*pages=*/1000);
  add(1, 7, 5000, 10);
  step();
  add(2, 8, 100, 10);
  add(3, 8, 100, 10);
  const BatchPlan plan = step();
  EXPECT_EQ(tokens_of(plan, 2), 100);
  EXPECT_EQ(tokens_of(plan, 3), 0);
}

TEST_F(Shared, ALongPromptWaitsItsTurnAndKeepsItsPages) {
  start(/*slots=*/16, /*pages=*/100);
  add(1, 7, 3000, 10);  // 48 pages
  step();
  add(2, 8, 3000, 10);  // 48 pages
  for (RequestId id = 3; id < 9; ++id) add(id, id + 10, 200, 10);
  const BatchPlan plan = step();
  EXPECT_EQ(plan.ranks[0].items.size(), 2U) << "the long prompt under way, and one short one";
  EXPECT_EQ(tokens_of(plan, 2), 0);
  while (scheduler_->stats().num_running + scheduler_->stats().num_queued > 0) step();
  EXPECT_EQ(running_.size(), 8U);
}

}  // namespace
}  // namespace hadal
