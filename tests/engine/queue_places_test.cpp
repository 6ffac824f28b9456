// Tests which requests find a place in the queue: whole reservations, a client's part, and when places are
// free again.
#include "engine/queue_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/loop/gate.h"
#include "tests/engine/fake_executor.h"
#include "tests/engine/test_requests.h"

namespace hadal {
namespace {

using testing::CheckedEngine;
using testing::Collector;
using testing::Door;
using testing::drain;
using testing::FakeExecutor;
using testing::greedy_request;
using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kNow{0};

Status refusal(Gate& gate, int64_t count, uint64_t client) {
  const auto places = gate.enter(count, client);
  EXPECT_FALSE(places.ok());
  return places.ok() ? Status{} : places.status();
}

TEST(QueuePlaces, AClientHasSevenEighthsAndAnotherFindsThePlacesThatRemain) {
  Gate gate(64);
  EXPECT_EQ(gate.places_of(1), 56);
  const QueuePlaces many = gate.enter(50, 1).value();
  const Status refused = refusal(gate, 7, 1);
  EXPECT_EQ(refused.code, StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message,
              HasSubstr("50 of its requests are waiting, and this one needs 7 places; allowed: 56"));
  EXPECT_THAT(refused.message, HasSubstr("max-queued-requests"));
  const QueuePlaces rest = gate.enter(6, 1).value();
  EXPECT_THAT(refusal(gate, 1, 1).message, HasSubstr("56 of its requests are waiting; allowed: 56"));
  const QueuePlaces others = gate.enter(8, 2).value();
  const Status full = refusal(gate, 1, 3);
  EXPECT_EQ(full.code, StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message, HasSubstr("the queue is full: 64 requests are waiting; allowed: 64"));
}

TEST(QueuePlaces, AReservationIsWholeOrNothing) {
  Gate gate(16);
  const QueuePlaces first = gate.enter(10, 0).value();
  const Status refused = refusal(gate, 7, 0);
  EXPECT_EQ(refused.code, StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message,
              HasSubstr("10 requests are waiting, and this one needs 7 places; allowed: 16"));
  EXPECT_EQ(gate.enter(6, 0).value().count(), 6) << "the refused one has taken nothing";
}

TEST(QueuePlaces, AReservationThatNeverFitsIsTheRequestsFault) {
  Gate gate(64);
  const Status share = refusal(gate, 57, 1);
  EXPECT_EQ(share.code, StatusCode::kInvalidArgument);
  EXPECT_THAT(share.message, HasSubstr("the request has 57 generations"));
  EXPECT_THAT(share.message, HasSubstr("allowed: 56,"));
  EXPECT_THAT(share.message, HasSubstr("7/8 of 64 (max-queued-requests)"));
  const Status whole = refusal(gate, 65, 0);
  EXPECT_EQ(whole.code, StatusCode::kInvalidArgument);
  EXPECT_THAT(whole.message, HasSubstr("allowed: 64,"));
}

TEST(QueuePlaces, SmallQueuesAndUnknownClientsHaveNoShare) {
  Gate small(7);
  EXPECT_EQ(small.enter(7, 1).value().count(), 7);
  Gate eight(8);
  EXPECT_EQ(eight.places_of(1), 7);
  EXPECT_EQ(eight.enter(8, 0).value().count(), 8);
  Gate unlimited(0);
  EXPECT_EQ(unlimited.enter(1 << 20, 1).value().count(), 1 << 20);
}

TEST(QueuePlaces, AreReturnedWhenTheirOwnerIsDestroyedOrTakesOthers) {
  Gate gate(8);
  {
    QueuePlaces places = gate.enter(7, 1).value();
    QueuePlaces moved = std::move(places);
    EXPECT_EQ(moved.count(), 7);
    EXPECT_EQ(refusal(gate, 1, 1).code, StatusCode::kResourceExhausted);
    moved = QueuePlaces();
    EXPECT_EQ(moved.count(), 0);
    EXPECT_EQ(gate.enter(7, 1).value().count(), 7);
    moved = gate.enter(3, 1).value();
    ASSERT_TRUE(gate.use(moved).ok());
    EXPECT_EQ(moved.count(), 2);
    EXPECT_EQ(refusal(gate, 5, 1).code, StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(gate.enter(6, 1).value().count(), 6) << "the used place is still taken";
  EXPECT_EQ(refusal(gate, 7, 1).code, StatusCode::kResourceExhausted);
  EXPECT_FALSE(gate.wait_empty(kNow));
  gate.left(false, 1);
  EXPECT_TRUE(gate.wait_empty(kNow));
  EXPECT_EQ(gate.enter(7, 1).value().count(), 7);
}

TEST(QueuePlaces, APlaceIsFreeOnceItsRequestRuns) {
  Gate gate(8);
  QueuePlaces places = gate.enter(7, 1).value();
  ASSERT_TRUE(gate.use(places).ok());
  gate.admitted(1);
  EXPECT_EQ(gate.enter(1, 1).value().count(), 1);
  EXPECT_FALSE(gate.wait_empty(kNow));
  gate.left(true, 1);
  EXPECT_TRUE(gate.wait_empty(kNow));
  EXPECT_EQ(refusal(gate, 2, 1).code, StatusCode::kResourceExhausted) << "leaving frees no second place";
}

TEST(QueuePlaces, AClosedGateLetsNobodyInOnPlacesFromBefore) {
  Gate gate(8);
  QueuePlaces places = gate.enter(2, 1).value();
  gate.close(make_status(StatusCode::kCancelled, "the end"));
  EXPECT_EQ(gate.use(places).status().code, StatusCode::kCancelled);
  EXPECT_EQ(places.count(), 2);
  EXPECT_EQ(refusal(gate, 1, 2).message, "the end");
  EXPECT_TRUE(gate.wait_empty(kNow)) << "places that nobody can use are not waited for";
}

TEST(QueuePlaces, CountsAreThoseOfASimpleModel) {
  constexpr uint64_t kSeed = 11;
  std::mt19937_64 random(kSeed);
  const auto below = [&](uint64_t end) { return static_cast<int64_t>(random() % end); };
  constexpr int64_t kMax = 24;
  Gate gate(kMax);
  std::vector<QueuePlaces> reserved;
  std::vector<std::pair<uint64_t, bool>> inside;  // client, whether it has been admitted
  for (int i = 0; i < 4'000; ++i) {
    std::map<uint64_t, int64_t> waiting;
    int64_t all = 0;
    for (const QueuePlaces& places : reserved) waiting[places.client()] += places.count();
    for (const auto& [client, admitted] : inside) waiting[client] += admitted ? 0 : 1;
    for (const auto& [client, count] : waiting) all += count;
    const size_t which = reserved.empty() ? 0 : static_cast<size_t>(below(reserved.size()));
    switch (below(6)) {
      case 0: {
        const auto client = static_cast<uint64_t>(below(4));
        const int64_t count = 1 + below(9);
        const bool fits = all + count <= kMax && (client == 0 || waiting[client] + count <= 21);
        auto places = gate.enter(count, client);
        ASSERT_EQ(places.ok(), fits) << "seed " << kSeed << ", step " << i;
        if (fits) reserved.push_back(std::move(places).value());
        break;
      }
      case 1:
        if (reserved.empty()) break;
        std::swap(reserved[which], reserved.back());
        reserved.pop_back();
        break;
      case 2:
      case 3:
        if (reserved.empty() || reserved[which].count() == 0) break;
        ASSERT_TRUE(gate.use(reserved[which]).ok());
        inside.emplace_back(reserved[which].client(), false);
        break;
      case 4:
        for (auto& [client, admitted] : inside) {
          if (admitted || below(2) == 0) continue;
          gate.admitted(client);
          admitted = true;
        }
        break;
      default:
        std::erase_if(inside, [&](const auto& request) {
          if (below(2) == 0) return false;
          gate.left(request.second, request.first);
          return true;
        });
        break;
    }
    ASSERT_EQ(gate.wait_empty(kNow), inside.empty()) << "seed " << kSeed << ", step " << i;
  }
}

TEST(DefaultQueue, HasSixteenPlacesForEachThatRunsAndAtLeast4096) {
  EXPECT_EQ(default_max_queued_requests(1), 4096);
  EXPECT_EQ(default_max_queued_requests(256), 4096);
  EXPECT_EQ(default_max_queued_requests(4096), 65536);
}

class ReservationTest : public ::testing::TestWithParam<bool> {
 protected:
  CheckedEngine make_engine(EngineOptions options, FakeExecutor::Hooks hooks = {}) {
    options.max_total_tokens = options.context_length = 4096;
    options.overlap_schedule = GetParam();
    options.decode_log_interval = 0;
    return CheckedEngine(
        Engine::create(std::make_unique<FakeExecutor>(std::move(hooks)), testing::fake_config(), options)
            .value());
  }
  static GenerateRequest request_of(uint64_t client, int64_t max_new_tokens = 4) {
    GenerateRequest request = greedy_request({1, 2, 3}, max_new_tokens);
    request.client = client;
    return request;
  }
};

INSTANTIATE_TEST_SUITE_P(Loop, ReservationTest, ::testing::Bool(),
                         [](const auto& loop) { return loop.param ? "Overlapped" : "Plain"; });

TEST_P(ReservationTest, TheDefaultIsResolvedWithTheNumberOfSlots) {
  const auto limit = [&](const EngineOptions& options) {
    return make_engine(options)->max_queued_requests();
  };
  EXPECT_EQ(limit({.max_running_requests = 2, .max_queued_requests = kDefaultMaxQueued}), 4096);
  EXPECT_EQ(limit({.max_running_requests = 300, .max_queued_requests = kDefaultMaxQueued}), 4800);
  EXPECT_EQ(limit({.max_queued_requests = 5}), 5);
  EXPECT_EQ(limit({}), 0);
}

TEST_P(ReservationTest, ABatchUsesItsPlacesAndReturnsTheRest) {
  const auto engine = make_engine({.max_running_requests = 1, .max_queued_requests = 8});
  engine->pause();
  std::vector<RequestId> ids;
  {
    QueuePlaces places = engine->reserve(6, 5).value();
    for (int i = 0; i < 4; ++i) ids.push_back(engine->submit(request_of(5), places).value());
    EXPECT_EQ(places.count(), 2);
    GenerateRequest bad = request_of(5);
    bad.input_ids = {-1};
    EXPECT_EQ(engine->submit(std::move(bad), places).status().code, StatusCode::kInvalidArgument);
    EXPECT_EQ(places.count(), 2) << "a refused request uses no place";
    EXPECT_EQ(engine->reserve(2, 5).status().code, StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(engine->reserve(3, 5).value().count(), 3);
  EXPECT_EQ(engine->reserve(8, 5).status().code, StatusCode::kInvalidArgument);
  engine->resume();
  for (const RequestId id : ids) EXPECT_EQ(drain(*engine, id).ids.size(), 4U);
}

TEST_P(ReservationTest, AbortedRequestsFreeTheirClientsPlaces) {
  const auto engine = make_engine({.max_running_requests = 1, .max_queued_requests = 8});
  engine->pause();
  for (int round = 0; round < 3; ++round) {
    std::vector<RequestId> ids;
    for (int i = 0; i < 7; ++i) ids.push_back(engine->submit(request_of(5)).value());
    const auto refused = engine->submit(request_of(5));
    EXPECT_EQ(refused.status().code, StatusCode::kResourceExhausted);
    EXPECT_THAT(refused.status().message, HasSubstr("7 of its requests are waiting; allowed: 7"));
    ids.push_back(engine->submit(request_of(6)).value());
    for (const RequestId id : ids) engine->abort(id);
    for (const RequestId id : ids) EXPECT_EQ(drain(*engine, id).last.finish_reason, FinishReason::kAbort);
    engine->check_integrity();  // the places are free one turn later
  }
}

TEST_P(ReservationTest, ARequestThatRunsWaitsNoLonger) {
  Door door;
  const auto hold = [&](const StagedStep&) {
    door.wait();
    return std::string();
  };
  const auto engine =
      make_engine({.max_running_requests = 2, .max_queued_requests = 8}, {.on_wait = hold, .on_launch = {}});
  engine->pause();
  const auto sink = std::make_shared<Collector>();
  const auto submit = [&](int count) {
    for (int i = 0; i < count; ++i) {
      GenerateRequest request = request_of(5);
      request.sink = sink;
      EXPECT_TRUE(engine->submit(std::move(request)).ok()) << i;
    }
  };
  submit(7);
  EXPECT_FALSE(engine->reserve(1, 5).ok());
  engine->resume();
  // Two of the requests have a slot, and their step does not end.
  std::optional<QueuePlaces> places;
  while (!places) {
    if (auto reserved = engine->reserve(2, 5); reserved.ok()) places = std::move(reserved).value();
  }
  EXPECT_FALSE(engine->reserve(1, 5).ok());
  places.reset();
  submit(2);
  door.open();
  sink->wait_finished(9);
}

TEST_P(ReservationTest, ADrainRefusesEarlierReservationsAndDoesNotWaitForThem) {
  const auto engine = make_engine({.max_queued_requests = 8});
  QueuePlaces places = engine->reserve(3, 5).value();
  EXPECT_EQ(engine->drain(std::chrono::minutes(5)), 0);
  EXPECT_EQ(engine->submit(request_of(5), places).status().code, StatusCode::kCancelled);
  EXPECT_EQ(engine->reserve(1, 5).status().code, StatusCode::kCancelled);
}

}  // namespace
}  // namespace hadal
