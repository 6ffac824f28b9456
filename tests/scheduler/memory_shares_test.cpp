// Tests that a client whose requests fill the pool does not take pages from other clients: whose requests are
// retracted, who may grow into the last pages, and who is admitted.
#include <gtest/gtest.h>

#include "scheduler/client_shares.h"
#include "tests/scheduler/client_requests.h"

namespace hadal::testing {
namespace {

// A step computes all prompts that have room, so that only memory keeps a request waiting.
SchedulerOptions options_of(int64_t num_slots, int64_t num_pages, SchedulePolicy policy) {
  return {.num_pages = num_pages,
          .max_running_requests = num_slots,
          .chunked_prefill_size = 1 << 20,
          .max_prefill_tokens = 1 << 20,
          .policy = policy,
          .conservativeness = 0.001};
}

// With fewer than eight slots nothing is kept for other clients, so only the choice of the victim is at work.
SchedulerOptions nothing_is_kept(int64_t num_pages, SchedulePolicy policy = SchedulePolicy::kFcfs) {
  return options_of(7, num_pages, policy);
}

// An eighth of 16 slots and of the pages is kept.
SchedulerOptions an_eighth_is_kept(int64_t num_pages, SchedulePolicy policy = SchedulePolicy::kFcfs) {
  return options_of(16, num_pages, policy);
}

TEST(MemoryShares, TheClientThatHoldsMostPagesGivesWayAndNotTheNewcomer) {
  ClientRequests requests(nothing_is_kept(20));
  const auto flood = requests.add_many(5, {.client = 7, .prompt_len = 60, .max_new_tokens = 1000});
  for (int i = 0; i < 100; ++i) requests.step();
  const RequestId newcomer = requests.add({.client = 8, .prompt_len = 60, .max_new_tokens = 300});
  EXPECT_EQ(requests.first_retracted(1000), flood.back());
  while (!requests.has_ended(newcomer)) requests.step();
  EXPECT_EQ(requests.num_retractions(newcomer), 0);
  requests.run_to_the_end(20'000);
}

TEST(MemoryShares, TheOldestRequestIsKeptEvenIfItsClientHoldsMostPages) {
  ClientRequests requests(nothing_is_kept(20));
  const RequestId oldest = requests.add({.client = 7, .prompt_len = 800, .max_new_tokens = 300});
  requests.add({.client = 8, .prompt_len = 60, .max_new_tokens = 300});
  const RequestId latest = requests.add({.client = 8, .prompt_len = 60, .max_new_tokens = 300});
  EXPECT_EQ(requests.first_retracted(1000), latest) << "client 7 has no other request";
  requests.run_to_the_end(5000);
  EXPECT_EQ(requests.num_retractions(oldest), 0);
}

TEST(MemoryShares, UnderPriorityALowerPriorityGivesWayBeforeALargerClient) {
  ClientRequests requests(nothing_is_kept(20, SchedulePolicy::kPriority));
  requests.add_many(4, {.client = 7, .prompt_len = 60, .max_new_tokens = 1000, .priority = 2});
  const RequestId low = requests.add({.client = 8, .prompt_len = 60, .max_new_tokens = 1000, .priority = 1});
  EXPECT_EQ(requests.first_retracted(1000), low);
  requests.run_to_the_end(20'000);
}

TEST(MemoryShares, AmongEqualPrioritiesTheLargerClientGivesWay) {
  ClientRequests requests(nothing_is_kept(20, SchedulePolicy::kPriority));
  const auto flood =
      requests.add_many(4, {.client = 7, .prompt_len = 60, .max_new_tokens = 1000, .priority = 1});
  requests.add({.client = 8, .prompt_len = 60, .max_new_tokens = 1000, .priority = 1});
  requests.add({.client = 8, .prompt_len = 60, .max_new_tokens = 1000, .priority = 2});
  EXPECT_EQ(requests.first_retracted(1000), flood.back());
  requests.run_to_the_end(20'000);
}

TEST(MemoryShares, AFullPoolMakesRoomForANewcomer) {
  ClientRequests requests(an_eighth_is_kept(160));
  const auto flood = requests.add_many(13, {.client = 7, .prompt_len = 60, .max_new_tokens = 2000});
  const RequestId bystander = requests.add({.client = 9, .prompt_len = 60, .max_new_tokens = 2000});
  while (requests.num_available() > 2) requests.step();
  const RequestId newcomer = requests.add({.client = 8, .prompt_len = 64 * 15, .max_new_tokens = 200});
  EXPECT_LE(requests.steps_until_start(newcomer, 1000), 66) << "the flood begins a page within 64 steps";
  while (!requests.has_ended(newcomer)) requests.step();
  EXPECT_EQ(requests.num_retractions(newcomer) + requests.num_retractions(bystander), 0);
  EXPECT_EQ(requests.num_retractions(flood.front()), 0) << "the oldest request is never retracted";
  EXPECT_GT(requests.num_retractions(flood.back()), 0);
  requests.run_to_the_end(50'000);
}

// The second client's request waits until the first one's oldest request ends, because it needs most of the
// pool.
TEST(MemoryShares, AWaitingClientIsCompanyHoweverLongItWaits) {
  ClientRequests requests(an_eighth_is_kept(160));
  const auto flood = requests.add_many(2, {.client = 7, .prompt_len = 64 * 4, .max_new_tokens = 5000});
  requests.step();
  const RequestId large = requests.add({.client = 8, .prompt_len = 64 * 153, .max_new_tokens = 100});
  EXPECT_EQ(requests.first_retracted(ClientShares::kCompanySteps), 0) << "both still have room to grow";
  EXPECT_EQ(requests.first_retracted(300), flood.back()) << "the last eighth is for the one that waits";
  EXPECT_FALSE(requests.is_running(large));
  requests.run_to_the_end(20'000);
}

// The flood was alone for so long that it need not leave any room before the other client arrives.
TEST(MemoryShares, ANewcomerIsCompanyAsSoonAsItAsksForAdmission) {
  ClientRequests requests(an_eighth_is_kept(160));
  requests.add_many(2, {.client = 7, .prompt_len = 60, .max_new_tokens = 6000});
  for (int i = 0; i < 4200; ++i) requests.step();
  requests.add_many(14, {.client = 7, .prompt_len = 60, .max_new_tokens = 500});
  while (requests.num_available() > 2) requests.step();
  const RequestId newcomer = requests.add({.client = 8, .prompt_len = 64 * 15, .max_new_tokens = 100});
  EXPECT_LE(requests.steps_until_start(newcomer, 1000), 66);
  requests.run_to_the_end(50'000);
}

TEST(MemoryShares, ARetractedRequestDoesNotComeBackIntoThePagesThatItLeft) {
  ClientRequests requests(an_eighth_is_kept(80));
  const RequestId oldest = requests.add({.client = 9, .prompt_len = 60, .max_new_tokens = 900});
  const RequestId large = requests.add({.client = 7, .prompt_len = 64 * 60, .max_new_tokens = 1000});
  while (requests.num_available() > 9) requests.step();
  const RequestId newcomer = requests.add({.client = 8, .prompt_len = 64 * 10, .max_new_tokens = 100});
  ASSERT_FALSE(requests.step().empty());
  ASSERT_FALSE(requests.is_running(newcomer)) << "nine pages are left";
  EXPECT_EQ(requests.first_retracted(64), large);
  EXPECT_LE(requests.steps_until_start(newcomer, 10), 2);
  EXPECT_FALSE(requests.is_running(large));
  requests.run_to_the_end(5000);
  EXPECT_LE(requests.num_retractions(large), 2);
  EXPECT_EQ(requests.num_retractions(oldest) + requests.num_retractions(newcomer), 0);
}

// Small requests of ever new clients want more than the whole pool, so the large one finds no room beside
// them.
TEST(MemoryShares, ARequestThatYieldedIsOvertakenOnly256Times) {
  ClientRequests requests(an_eighth_is_kept(80));
  requests.add({.client = 9, .prompt_len = 60, .max_new_tokens = 4000});
  const RequestId large = requests.add({.client = 7, .prompt_len = 64 * 60, .max_new_tokens = 1000});
  while (requests.num_available() > 9) requests.step();
  uint64_t next_client = 100;
  int num_overtaking = 0;
  std::vector<RequestId> waiting;
  for (int i = 0; i < 20'000 && !requests.has_ended(large); ++i) {
    while (requests.scheduler().stats().num_queued < 20) {
      waiting.push_back(requests.add({.client = next_client++, .prompt_len = 64 * 9, .max_new_tokens = 10}));
    }
    requests.step();
    if (requests.num_retractions(large) != 1 || requests.is_running(large)) continue;
    num_overtaking += static_cast<int>(
        std::erase_if(waiting, [&requests](RequestId id) { return requests.has_started(id); }));
  }
  EXPECT_TRUE(requests.has_ended(large));
  EXPECT_GT(num_overtaking, 200);
  EXPECT_LE(num_overtaking, 256 + 20) << "those of the last step, and those that were already running";
}

TEST(MemoryShares, TwoLargeRequestsDoNotTakeTurnsInYielding) {
  ClientRequests requests(an_eighth_is_kept(80));
  const RequestId oldest = requests.add({.client = 9, .prompt_len = 60, .max_new_tokens = 600});
  const RequestId first = requests.add({.client = 7, .prompt_len = 64 * 60, .max_new_tokens = 900});
  while (requests.num_available() > 9) requests.step();
  const RequestId second = requests.add({.client = 8, .prompt_len = 64 * 60, .max_new_tokens = 900});
  while (!requests.has_ended(first) || !requests.has_ended(second)) ASSERT_FALSE(requests.step().empty());
  EXPECT_EQ(requests.num_retractions(first), 1);
  EXPECT_EQ(requests.num_retractions(second), 0);
  EXPECT_EQ(requests.num_retractions(oldest), 0);
  requests.run_to_the_end(5000);
}

TEST(MemoryShares, TheOldestRequestGrowsIntoTheKeptPagesAlthoughAnotherClientWaits) {
  ClientRequests requests(an_eighth_is_kept(80));
  requests.add({.client = 9, .prompt_len = 60, .max_new_tokens = 1});
  requests.step();
  const RequestId oldest = requests.add({.client = 7, .prompt_len = 64 * 72, .max_new_tokens = 500});
  requests.step();
  const RequestId newcomer = requests.add({.client = 8, .prompt_len = 64 * 10, .max_new_tokens = 100});
  while (!requests.has_ended(oldest)) ASSERT_FALSE(requests.step().empty());
  EXPECT_EQ(requests.num_retractions(oldest), 0);
  requests.run_to_the_end(1000);
  EXPECT_EQ(requests.num_retractions(newcomer), 0);
}

TEST(MemoryShares, UnderPriorityAHigherPriorityGrowsIntoTheKeptPages) {
  for (const int32_t priority : {1, 2}) {
    ClientRequests requests(an_eighth_is_kept(80, SchedulePolicy::kPriority));
    requests.add({.client = 9, .prompt_len = 60, .max_new_tokens = 500, .priority = 1});
    const RequestId large =
        requests.add({.client = 7, .prompt_len = 64 * 60, .max_new_tokens = 900, .priority = priority});
    while (requests.num_available() > 9) requests.step();
    requests.add({.client = 8, .prompt_len = 64 * 10, .max_new_tokens = 100, .priority = 1});
    EXPECT_EQ(requests.first_retracted(100), priority == 1 ? large : 0);
    requests.run_to_the_end(5000);
  }
}

// The first client was alone, so its requests are expected to grow until they fill the pool.
TEST(MemoryShares, GrowthIntoTheKeptPagesThatIsOnlyExpectedKeepsNobodyOut) {
  for (const auto policy : {SchedulePolicy::kFcfs, SchedulePolicy::kPriority}) {
    for (const int32_t priority : {1, 2}) {
      SchedulerOptions options = an_eighth_is_kept(400, policy);
      options.conservativeness = 1.0;
      ClientRequests requests(options);
      requests.add_many(12, {.client = 7, .prompt_len = 60, .max_new_tokens = 4000, .priority = priority});
      for (int i = 0; i < 3; ++i) requests.step();
      ASSERT_GT(requests.num_available(), 380);
      const RequestId newcomer =
          requests.add({.client = 8, .prompt_len = 64 * 40, .max_new_tokens = 300, .priority = 1});
      requests.step();
      const bool goes_after = policy == SchedulePolicy::kPriority && priority > 1;
      EXPECT_EQ(requests.is_running(newcomer), !goes_after);
    }
  }
}

TEST(MemoryShares, ARequestThatItsOwnClientKeepsOutHoldsUpNoOtherClient) {
  ClientRequests requests(nothing_is_kept(100));
  requests.add({.client = 7, .prompt_len = 64 * 60, .max_new_tokens = 50});
  requests.step();
  const RequestId large = requests.add({.client = 7, .prompt_len = 64 * 80, .max_new_tokens = 10});
  const RequestId own = requests.add({.client = 7, .prompt_len = 60, .max_new_tokens = 10});
  const RequestId other = requests.add({.client = 8, .prompt_len = 60, .max_new_tokens = 10});
  requests.step();
  EXPECT_TRUE(requests.is_running(other));
  EXPECT_FALSE(requests.is_running(large));
  EXPECT_FALSE(requests.is_running(own)) << "it came after its client's large one";
  requests.run_to_the_end(1000);
}

TEST(MemoryShares, ARequestThatOtherClientsKeepOutIsNotOvertaken) {
  ClientRequests requests(nothing_is_kept(100));
  requests.add({.client = 9, .prompt_len = 64 * 60, .max_new_tokens = 50});
  requests.step();
  const RequestId large = requests.add({.client = 7, .prompt_len = 64 * 80, .max_new_tokens = 10});
  const RequestId other = requests.add({.client = 8, .prompt_len = 60, .max_new_tokens = 10});
  while (!requests.is_running(large)) {
    requests.step();
    ASSERT_TRUE(requests.is_running(large) || !requests.is_running(other));
  }
  requests.run_to_the_end(1000);
}

// The large client has no prompt under way, so its long one is considered among the short ones of others.
TEST(MemoryShares, NoPagesAreKeptForALongPromptOfAClientThatMustLeaveRoom) {
  SchedulerOptions options = an_eighth_is_kept(200);
  options.chunked_prefill_size = 128;
  ClientRequests requests(options);
  requests.add({.client = 7, .prompt_len = 64 * 100, .max_new_tokens = 500});
  requests.add({.client = 8, .prompt_len = 64, .max_new_tokens = 500});
  for (int i = 0; i < 60; ++i) requests.step();
  requests.add({.client = 9, .prompt_len = 3000, .max_new_tokens = 10});
  requests.step();
  requests.add({.client = 7, .prompt_len = 64 * 90, .max_new_tokens = 10});
  const RequestId other = requests.add({.client = 10, .prompt_len = 60, .max_new_tokens = 10});
  requests.step();
  EXPECT_TRUE(requests.is_running(other)) << "beside the long prompt of client 9";
}

// Under lof every length is a standing of its own, so each of the flood's requests is passed over separately.
TEST(MemoryShares, AFloodOfManyStandingsHidesNoOtherClientsRequest) {
  ClientRequests requests(an_eighth_is_kept(400, SchedulePolicy::kLof));
  requests.add({.client = 8, .prompt_len = 5, .max_new_tokens = 1});
  requests.step();
  for (int i = 0; i < 1500; ++i) requests.add({.client = 7, .prompt_len = 5, .max_new_tokens = 500 + i});
  for (int i = 0; i < 3; ++i) requests.step();
  const RequestId other = requests.add({.client = 8, .prompt_len = 5, .max_new_tokens = 1});
  requests.step();
  EXPECT_TRUE(requests.has_started(other));
}

}  // namespace
}  // namespace hadal::testing
