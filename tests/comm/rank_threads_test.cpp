#include "comm/rank_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/allocation/failing_allocator.h"
#include "tests/comm/ranks.h"

namespace hadal {
namespace {

using testing::describe;
using testing::kPatient;
using testing::missing_in;
using testing::thrown_by;

class RankThreadsOf : public ::testing::TestWithParam<int> {
 protected:
  int num_ranks() const { return GetParam(); }
};

TEST_P(RankThreadsOf, RunCallsTheBodyOnceForEachRankWithItsCommunicator) {
  RankThreads ranks(num_ranks(), kPatient, nullptr);
  ASSERT_EQ(ranks.num_ranks(), num_ranks());
  std::vector<std::atomic<int>> calls(num_ranks());
  std::atomic<int> num_wrong{0};
  ranks.run([&](int rank, Communicator& comm) {
    ++calls.at(rank);
    num_wrong += comm.rank() != rank || comm.num_ranks() != num_ranks();
  });
  for (const auto& count : calls) EXPECT_EQ(count.load(), 1);
  EXPECT_EQ(num_wrong.load(), 0);
}

TEST_P(RankThreadsOf, ARankAlwaysHasTheSameThreadWhichIsNotTheCallers) {
  RankThreads ranks(num_ranks(), kPatient, nullptr);
  std::vector<std::thread::id> first(num_ranks());
  ranks.run([&](int rank, Communicator&) { first[rank] = std::this_thread::get_id(); });
  for (int a = 0; a < num_ranks(); ++a) {
    EXPECT_NE(first[a], std::this_thread::get_id());
    for (int b = 0; b < a; ++b) EXPECT_NE(first[a], first[b]);
  }
  std::atomic<int> num_wrong{0};
  for (int step = 0; step < 100; ++step) {
    ranks.run([&](int rank, Communicator&) { num_wrong += std::this_thread::get_id() != first[rank]; });
  }
  EXPECT_EQ(num_wrong.load(), 0);
}

// The ranks' plain writes must be visible after run(), and the caller's writes must be visible to the ranks.
// TSan checks this order.
TEST_P(RankThreadsOf, OrdersPlainAccessesAcrossThousandsOfSteps) {
  RankThreads ranks(num_ranks(), kPatient, nullptr);
  int64_t input = 0;
  std::vector<int64_t> output(num_ranks());
  for (int step = 0; step < 3000; ++step) {
    input = step;
    ranks.run([&](int rank, Communicator&) { output[rank] = input * 10 + rank; });
    for (int rank = 0; rank < num_ranks(); ++rank) ASSERT_EQ(output[rank], step * 10 + rank);
  }
}

TEST_P(RankThreadsOf, StepsMayComeAfterAnyPause) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  RankThreads ranks(num_ranks(), kPatient, nullptr);
  for (int step = 0; step < 200; ++step) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));  // the threads spin, or sleep
    std::vector<float> data(num_ranks(), 1);
    std::atomic<int> num_done{0};
    ranks.run([&](int rank, Communicator& comm) {
      comm.all_reduce(std::span(&data[rank], 1));
      ++num_done;
    });
    ASSERT_EQ(num_done.load(), num_ranks());
    for (const float sum : data) ASSERT_EQ(sum, static_cast<float>(num_ranks()));
  }
}

TEST_P(RankThreadsOf, ASlowRankChangesNothing) {
  RankThreads ranks(num_ranks(), kPatient, nullptr);
  for (int slow = 0; slow < num_ranks(); ++slow) {
    std::vector<float> data(num_ranks(), 1);
    const auto nap = [&](int rank) {
      if (rank == slow) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    };
    ranks.run([&](int rank, Communicator& comm) {
      nap(rank);
      comm.all_reduce(std::span(&data[rank], 1));
      nap(rank);
    });
    for (const float sum : data) EXPECT_EQ(sum, static_cast<float>(num_ranks()));
  }
}

// Throws says what a rank may throw, and what the caller of run() should get.
struct Throws {
  std::function<void()> call;
  std::string seen;
  std::string told;  // what the other ranks are told
};

TEST_P(RankThreadsOf, TheFirstFailureIsThrownWithItsTypeAndTheNextStepRuns) {
  const std::vector<Throws> kinds = {
      {[] { throw Error("a broken invariant"); }, "Error: a broken invariant", "a broken invariant"},
      {[] { throw std::runtime_error("a runtime error"); }, "a runtime error", "a runtime error"},
      {[] { throw std::bad_alloc(); }, "bad_alloc", "std::bad_alloc"},
  };
  RankThreads ranks(num_ranks(), kPatient, nullptr);
  for (const Throws& kind : kinds) {
    for (int thrower = 0; thrower < num_ranks(); ++thrower) {
      for (int at = 0; at < 4; ++at) {
        SCOPED_TRACE(kind.seen + ", rank " + std::to_string(thrower) + ", call " + std::to_string(at));
        std::vector<std::string> others(num_ranks());
        std::vector<int> num_done(num_ranks(), 0);
        const auto body = [&](int rank, Communicator& comm) {
          for (int call = 0; call < 4; ++call) {
            if (rank == thrower && call == at) kind.call();
            std::vector<float> data(100, 1);
            try {
              comm.all_reduce(data);
            } catch (...) {
              others[rank] = describe(std::current_exception());
              throw;
            }
            ++num_done[rank];
          }
        };
        EXPECT_EQ(thrown_by([&] { ranks.run(body); }), kind.seen);
        for (int rank = 0; rank < num_ranks(); ++rank) {
          EXPECT_EQ(num_done[rank], at) << "rank " << rank;
          if (rank == thrower) continue;
          EXPECT_EQ(others[rank], "RankFailed: rank " + std::to_string(thrower) + ": " + kind.told);
        }
        std::vector<float> data(num_ranks(), 1);
        ranks.run([&](int rank, Communicator& comm) { comm.all_reduce(std::span(&data[rank], 1)); });
        for (const float sum : data) EXPECT_EQ(sum, static_cast<float>(num_ranks()));
      }
    }
  }
}

TEST_P(RankThreadsOf, AnExceptionOfAnyTypeReachesTheCaller) {
  RankThreads ranks(num_ranks(), kPatient, nullptr);
  const auto body = [&](int rank, Communicator& comm) {
    if (rank == 0) throw 42;
    comm.barrier();
  };
  try {
    ranks.run(body);
    FAIL() << "nothing was thrown";
  } catch (const int value) {
    EXPECT_EQ(value, 42);
  }
  ranks.run([](int, Communicator& comm) { comm.barrier(); });
}

TEST_P(RankThreadsOf, OneFailureIsThrownWhenAllRanksThrow) {
  RankThreads ranks(num_ranks(), kPatient, nullptr);
  EXPECT_EQ(thrown_by([&] { ranks.run([](int, Communicator&) { throw Error("all"); }); }), "Error: all");
  ranks.run([](int, Communicator& comm) { comm.barrier(); });
}

TEST_P(RankThreadsOf, ABodyThatHandlesAFailureLeavesTheGroupUsable) {
  RankThreads ranks(num_ranks(), kPatient, nullptr);
  if (num_ranks() > 1) {
    const auto mismatched = [](int rank, Communicator& comm) {
      std::vector<float> data(rank + 1);
      EXPECT_THROW(comm.all_reduce(data), Error);
    };
    ranks.run(mismatched);
    EXPECT_EQ(missing_in(thrown_by([&] {
                           ranks.run([](int rank, Communicator& comm) {
                             std::vector<float> data(rank + 1);
                             comm.all_reduce(data);
                           });
                         }),
                         {"Error: check failed", "all_reduce has 1 elements on rank 0 and 2 on rank 1"}),
              "");
  }
  ranks.run([](int, Communicator& comm) { comm.barrier(); });
}

TEST_P(RankThreadsOf, BodyAndOwnerAreReleasedInTime) {
  auto owner = std::make_shared<int>(1);
  auto captured = std::make_shared<int>(2);
  const std::weak_ptr<int> owner_alive = owner;
  const std::weak_ptr<int> captured_alive = captured;
  {
    RankThreads ranks(num_ranks(), kPatient, std::move(owner));
    ranks.run([captured = std::move(captured)](int, Communicator& comm) { comm.barrier(); });
    EXPECT_TRUE(captured_alive.expired()) << "the body outlived its step";
    EXPECT_FALSE(owner_alive.expired());
  }
  EXPECT_TRUE(owner_alive.expired()) << "the owner outlived the threads";
}

TEST_P(RankThreadsOf, StopsCleanlyWhetherUsedOrNot) {
  std::atomic<int> num_calls{0};
  for (int i = 0; i < 50; ++i) {
    RankThreads ranks(num_ranks(), kPatient, nullptr);
    if (i % 2 == 0) ranks.run([&](int, Communicator&) { ++num_calls; });
  }
  EXPECT_EQ(num_calls.load(), 25 * num_ranks());
}

TEST_P(RankThreadsOf, StepsAllocateNothingOnTheThreadsOfRanks) {
  RankThreads ranks(num_ranks(), kPatient, nullptr);
  ranks.run([](int, Communicator&) { testing::mark_this_thread(); });
  testing::fail_allocation(1, testing::Victims::kMarked, testing::Failure::kAtOnce);
  std::string thrown;
  for (int step = 0; step < 20; ++step) {
    thrown += thrown_by([&] { ranks.run([](int, Communicator& comm) { comm.barrier(); }); });
  }
  EXPECT_FALSE(testing::stop_failing()) << thrown;
}

INSTANTIATE_TEST_SUITE_P(Sizes, RankThreadsOf, ::testing::Values(1, 2, 3, 8),
                         [](const auto& size) { return std::to_string(size.param) + "Ranks"; });

TEST(RankThreads, AStepNeedsAFunction) {
  RankThreads ranks(2, kPatient, nullptr);
  EXPECT_EQ(missing_in(thrown_by([&] { ranks.run(nullptr); }), {"a step needs a function to run"}), "");
}

TEST(RankThreads, ThereIsAtLeastOneRank) {
  EXPECT_EQ(missing_in(thrown_by([] { RankThreads(0, kPatient, nullptr); }), {"a group has 0 ranks"}), "");
  EXPECT_EQ(missing_in(thrown_by([] { RankThreads(-1, kPatient, nullptr); }), {"a group has -1 ranks"}), "");
}

}  // namespace
}  // namespace hadal
