// Tests the order of waiting requests between clients.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "scheduler/request_queue.h"
#include "scheduler/scheduler.h"

namespace hadal {
namespace {

// One request runs at a time, so that the order of starts is the order of admission.
class OneAtATime {
 public:
  explicit OneAtATime(SchedulePolicy policy = SchedulePolicy::kFcfs)
      : scheduler_({.num_pages = 64, .max_running_requests = 1, .policy = policy}) {}

  void add(RequestId id, uint64_t client) {
    scheduler_.add({.id = id, .prompt = {static_cast<int32_t>(id)}, .max_new_tokens = 1, .client = client});
  }
  void abort(RequestId id) { scheduler_.abort(id); }
  // Runs one request to its end and returns its id; 0 when none waits.
  RequestId serve() {
    const BatchPlan plan = scheduler_.plan();
    scheduler_.check_integrity();
    if (plan.empty()) return 0;
    const RequestId id = plan.ranks[0].items[0].request_id;
    const std::vector<ItemOutcome> outcomes = {{.request_id = id, .token = 1, .finished = true}};
    scheduler_.complete(plan, outcomes);
    return id;
  }
  std::vector<RequestId> serve(int count) {
    std::vector<RequestId> ids;
    for (int i = 0; i < count; ++i) ids.push_back(serve());
    return ids;
  }

 private:
  Scheduler scheduler_;
};

using Ids = std::vector<RequestId>;

TEST(Fairness, AFloodDelaysAnotherClientByAtMostOneRequest) {
  for (const auto policy :
       {SchedulePolicy::kFcfs, SchedulePolicy::kLpm, SchedulePolicy::kPriority, SchedulePolicy::kLof}) {
    OneAtATime queue(policy);
    for (RequestId id = 1; id <= 4000; ++id) queue.add(id, 7);
    queue.serve(100);
    queue.add(10'000, 8);
    const Ids next = queue.serve(2);
    EXPECT_TRUE(next[0] == 10'000 || next[1] == 10'000) << static_cast<int>(policy);
  }
}

TEST(Fairness, TwoClientsTakeTurns) {
  OneAtATime queue;
  for (RequestId id = 1; id <= 4; ++id) queue.add(id, 7);
  for (RequestId id = 11; id <= 14; ++id) queue.add(id, 8);
  EXPECT_EQ(queue.serve(9), (Ids{1, 11, 2, 12, 3, 13, 4, 14, 0}));
}

TEST(Fairness, AnAbortedRequestUsesNoTurnOfItsClient) {
  OneAtATime queue;
  for (RequestId id = 1; id <= 50; ++id) queue.add(id, 7);
  for (RequestId id = 101; id <= 103; ++id) queue.add(id, 8);
  for (RequestId id = 1; id <= 48; ++id) queue.abort(id);
  EXPECT_EQ(queue.serve(5), (Ids{49, 101, 50, 102, 103}));
}

TEST(Fairness, AClientThatComesBackAfterEachRequestLeavesTurnsToTheOthers) {
  OneAtATime queue;
  for (RequestId id = 1; id <= 40; ++id) queue.add(id, 7);
  RequestId last = 1000;
  queue.add(last, 8);
  int turns = 0;  // of client 8
  for (int i = 0; i < 40; ++i) {
    if (queue.serve() != last) continue;
    ++turns;
    queue.add(++last, 8);
  }
  EXPECT_EQ(turns, 20);
}

TEST(Fairness, OneClientIsServedInOrderOfArrival) {
  OneAtATime queue;
  for (RequestId id = 1; id <= 300; ++id) queue.add(id, 7);
  for (RequestId id = 1; id <= 300; ++id) EXPECT_EQ(queue.serve(), id);
}

// Walks over requests of client 7 (arrivals 1 to 3 and 5) and client 8 (arrival 4), and skips each client
// after its first request.
std::vector<uint64_t> arrivals_of_a_walk_that_skips(bool retracted) {
  RequestQueue queue(SchedulePolicy::kFcfs);
  std::vector<RequestState> requests(5);
  for (uint64_t i = 0; i < 5; ++i) {
    requests[i].arrival = i + 1;
    requests[i].client = i == 3 ? 8 : 7;
    requests[i].retracted = retracted;
    queue.push(&requests[i]);
  }
  std::vector<uint64_t> visited;
  queue.visit_in_order([](RequestState&) { return 0; },
                       [&](RequestState& request) {
                         visited.push_back(request.arrival);
                         return RequestQueue::Visit::kSkipClient;
                       });
  return visited;
}

TEST(Fairness, AClientThatIsSkippedIsVisitedOnce) {
  EXPECT_EQ(arrivals_of_a_walk_that_skips(/*retracted=*/false), (std::vector<uint64_t>{1, 4}));
}

TEST(Fairness, RetractedRequestsOfSeveralClientsAreOneLineSoSkippingOneHidesNoOther) {
  EXPECT_EQ(arrivals_of_a_walk_that_skips(/*retracted=*/true), (std::vector<uint64_t>{1, 2, 3, 4, 5}));
}

}  // namespace
}  // namespace hadal
