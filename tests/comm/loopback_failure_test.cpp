#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/loopback.h"
#include "tests/allocation/failing_allocator.h"
#include "tests/comm/ranks.h"

namespace hadal {
namespace {

using std::chrono::milliseconds;
using testing::describe;
using testing::expect_with_some_deadline;
using testing::kPatient;
using testing::missing_in;
using testing::on_ranks;
using testing::thrown_by;

// Expects that every rank reports in the same words that the calls contradict each other, and that the group
// stays usable.
void expect_misfit(int num_ranks, const std::function<void(Communicator&)>& body, const std::string& words) {
  LoopbackGroup group(num_ranks, kPatient);
  for (const std::exception_ptr& thrown : on_ranks(group, body)) {
    EXPECT_EQ(missing_in(describe(thrown), {"Error: check failed", words}), "");
  }
  for (const std::exception_ptr& thrown : on_ranks(group, [](Communicator& comm) { comm.barrier(); })) {
    EXPECT_EQ(describe(thrown), "nothing");
  }
}

TEST(LoopbackFailure, AllReduceOfUnequalSizesFailsOnEveryRankWithBothSizes) {
  std::vector<float> data(9);
  expect_misfit(
      3, [&](Communicator& comm) { comm.all_reduce(std::span(data).first(comm.rank() == 2 ? 8 : 9)); },
      "all_reduce has 9 elements on rank 0 and 8 on rank 2");
}

TEST(LoopbackFailure, ReduceScatterOfUnequalSizesFailsOnEveryRankWithBothSizes) {
  std::vector<float> data(9);
  std::vector<std::vector<float>> mine(3, std::vector<float>(3));
  expect_misfit(
      3,
      [&](Communicator& comm) {
        comm.reduce_scatter(std::span(data).first(comm.rank() == 1 ? 6 : 9), mine[comm.rank()]);
      },
      "reduce_scatter has 9 elements on rank 0 and 6 on rank 1");
  expect_misfit(
      3,
      [&](Communicator& comm) {
        comm.reduce_scatter(data, std::span(mine[comm.rank()]).first(comm.rank() == 1 ? 2 : 3));
      },
      "reduce_scatter has 9 elements on rank 1, and the parts of all ranks have 6");
}

TEST(LoopbackFailure, AllGatherWithoutTheRoomFailsOnEveryRankWithBothSizes) {
  const std::vector<std::byte> mine(5);
  std::vector<std::vector<std::byte>> all(2, std::vector<std::byte>(10));
  expect_misfit(
      2,
      [&](Communicator& comm) {
        comm.all_gather(mine, std::span(all[comm.rank()]).first(comm.rank() == 1 ? 9 : 10));
      },
      "all_gather has room for 9 bytes on rank 1, and the parts of all ranks have 10");
}

TEST(LoopbackFailure, AllToAllOfUnequalSizesFailsOnEveryRankWithBothSizes) {
  const std::vector<std::byte> sent(5);
  std::vector<std::vector<std::byte>> received(2, std::vector<std::byte>(10));
  const auto exchange = [&](Communicator& comm, size_t num_parts, size_t room) {
    const std::vector<std::span<const std::byte>> send(2, sent);
    const std::vector<std::span<std::byte>> receive = {std::span(received[comm.rank()]).first(room),
                                                       std::span(received[comm.rank()]).last(5)};
    comm.all_to_all(send, std::span(receive).first(num_parts));
  };
  expect_misfit(
      2, [&](Communicator& comm) { exchange(comm, 2, comm.rank() == 1 ? 4 : 5); },
      "all_to_all sends 5 bytes from rank 0 to rank 1, which has room for 4");
  expect_misfit(
      2, [&](Communicator& comm) { exchange(comm, comm.rank() == 1 ? 1 : 2, 5); },
      "all_to_all has 1 parts on rank 1, and there are 2 ranks");
}

TEST(LoopbackFailure, DifferentCallsFailOnEveryRankWithBothNames) {
  std::vector<float> data(4);
  expect_misfit(
      2, [&](Communicator& comm) { comm.rank() == 0 ? comm.barrier() : comm.all_reduce(data); },
      "rank 0 calls barrier and rank 1 calls all_reduce");
}

TEST(LoopbackFailure, OneRankChecksItsSizesToo) {
  std::vector<float> data(4);
  std::vector<float> mine(3);
  expect_misfit(
      1, [&](Communicator& comm) { comm.reduce_scatter(data, mine); },
      "reduce_scatter has 4 elements on rank 0, and the parts of all ranks have 3");
}

class LoopbackFailureOf : public ::testing::TestWithParam<int> {};

TEST_P(LoopbackFailureOf, AFailureEndsWaitingAndLaterCallsUntilTheGroupRecovers) {
  const int num_ranks = GetParam();
  const int failing = num_ranks - 1;
  LoopbackGroup group(num_ranks, kPatient);
  for (const bool in_time : {true, false}) {  // before or while the others wait
    std::atomic<int> num_entering{0};
    const auto thrown = on_ranks(group, [&](Communicator& comm) {
      if (comm.rank() == failing) {
        while (!in_time && num_entering < num_ranks - 1) std::this_thread::yield();
        if (!in_time) std::this_thread::sleep_for(milliseconds(5));
        group.fail(failing, "no coffee");
        group.fail(0, "the first failure counts");
      }
      ++num_entering;
      comm.barrier();
    });
    const std::string expected = "RankFailed: rank " + std::to_string(failing) + ": no coffee";
    for (int rank = 0; rank < num_ranks; ++rank) {
      EXPECT_EQ(describe(thrown[rank]), expected);
      EXPECT_EQ(thrown_by([&] { group.end(rank).barrier(); }), expected);
      EXPECT_EQ(thrown_by([&] { group.end(rank).all_reduce({}); }), expected);
    }
    group.recover();
    for (const auto& after : on_ranks(group, [](Communicator& comm) { comm.barrier(); })) {
      EXPECT_EQ(describe(after), "nothing");
    }
  }
}

// Ranks free their buffers as soon as a call throws, which the address sanitizer checks against the others'
// reads.
TEST_P(LoopbackFailureOf, AFailureAtAnyTimeEndsTheSameCallOnAllRanks) {
  const int num_ranks = GetParam();
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  LoopbackGroup group(num_ranks, kPatient);
  for (int repetition = 0; repetition < 200; ++repetition) {
    std::vector<int> num_done(num_ranks, 0);
    std::thread failing([&, pause = random() % 1000] {
      std::this_thread::sleep_for(std::chrono::microseconds(pause));
      group.fail(0, "stop");
    });
    const auto thrown = on_ranks(group, [&](Communicator& comm) {
      std::mt19937_64 delays(seed + static_cast<uint64_t>(repetition * num_ranks + comm.rank()));
      while (true) {
        std::vector<float> data(2000, 1);
        testing::delay(delays);
        comm.all_reduce(data);
        if (data.back() != static_cast<float>(num_ranks)) throw std::runtime_error("a wrong sum");
        ++num_done[comm.rank()];
      }
    });
    failing.join();
    for (int rank = 0; rank < num_ranks; ++rank) {
      ASSERT_EQ(describe(thrown[rank]), "RankFailed: rank 0: stop") << "rank " << rank;
      ASSERT_EQ(num_done[rank], num_done[0]) << "rank " << rank;
    }
    group.recover();
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, LoopbackFailureOf, ::testing::Values(1, 2, 3, 8),
                         [](const auto& size) { return std::to_string(size.param) + "Ranks"; });

TEST(LoopbackFailure, AnEndlessReasonIsCut) {
  LoopbackGroup group(1, kPatient);
  group.fail(0, std::string(100000, 'x'));
  const std::string thrown = thrown_by([&] { group.end(0).barrier(); });
  EXPECT_EQ(missing_in(thrown, {"RankFailed: rank 0: xxx"}), "");
  EXPECT_LT(thrown.size(), 2000u);
}

TEST(LoopbackFailure, ARankOverTheDeadlineIsLostAndNamedWithItsCalls) {
  expect_with_some_deadline([](milliseconds deadline) {
    LoopbackGroup group(2, deadline);
    std::atomic<bool> over{false};
    std::vector<std::byte> all(8);
    std::vector<float> data(4);
    const auto thrown = on_ranks(group, [&](Communicator& comm) {
      if (comm.rank() == 0) {
        comm.all_gather({}, {});
        over = thrown_by([&] { comm.all_reduce(data); }) != "nothing";
        over.notify_all();
      } else {
        comm.all_gather({}, {});
        over.wait(false);
      }
      comm.barrier();  // the late rank gets the failure too
    });
    const std::vector<std::string> words = {
        "RankLost: rank 1 is lost: within " + std::to_string(deadline.count()) +
        " ms it has not made call 2 (all_reduce), as rank 0 has; the last call seen of it is 1 (all_gather)"};
    return missing_in(describe(thrown[0]), words) + missing_in(describe(thrown[1]), words) +
           missing_in(thrown_by([&] { group.recover(); }), words);
  });
}

TEST(LoopbackFailure, SeveralLostRanksAreCounted) {
  LoopbackGroup group(4, milliseconds(100));
  EXPECT_EQ(missing_in(thrown_by([&] { group.end(1).barrier(); }),
                       {"RankLost: rank 0 is lost, and 2 more: within 100 ms", "it has made no call"}),
            "");
}

// A rank that had entered the failed call is not mistaken for one that has entered the next call.
TEST(LoopbackFailure, ARankIsLostAfterACallThatFailedToo) {
  expect_with_some_deadline([](milliseconds deadline) {
    LoopbackGroup group(2, deadline);
    std::thread rank_1([&] { thrown_by([&] { group.end(1).barrier(); }); });
    std::this_thread::sleep_for(deadline / 5);  // long enough for rank 1 to enter its call, on most machines
    group.fail(0, "stop");
    rank_1.join();
    thrown_by([&] { group.recover(); });
    return missing_in(thrown_by([&] { group.end(0).barrier(); }),
                      {"RankLost: rank 1 is lost:", "made call 2 (barrier)"});
  });
}

TEST(LoopbackFailure, ALossReplacesAFailureAndKeepsItsWords) {
  LoopbackGroup group(2, kPatient);
  group.fail(0, "no coffee");
  group.lose(1, 1, "come back");
  group.lose(0, 1, "been lost first");
  const std::vector<std::string> words = {
      "RankLost: rank 1 is lost: within 60000 ms it has not come back; it has made no call; before that, "
      "rank 0: no "
      "coffee"};
  EXPECT_EQ(missing_in(thrown_by([&] { group.end(0).barrier(); }), words), "");
  EXPECT_EQ(missing_in(thrown_by([&] { group.recover(); }), words), "");
}

// Makes each allocation of a rank fail in turn while a failure or a misfit is reported.
TEST(LoopbackFailure, WithoutMemoryForAnErrorARankThrowsBadAllocAndNoneHangs) {
  for (const bool misfit : {false, true}) {
    int num_failed = 0;
    for (int k = 1;; ++k) {
      LoopbackGroup group(2, kPatient);
      std::vector<float> data(3);
      testing::fail_allocation(k, testing::Victims::kMarked, testing::Failure::kAtOnce);
      const auto thrown = on_ranks(group, [&](Communicator& comm) {
        if (comm.rank() == 1) testing::mark_this_thread();
        if (!misfit && comm.rank() == 0) group.fail(0, "a reason that is too long for a small string");
        comm.all_reduce(std::span(data).first(misfit ? comm.rank() : 3));
      });
      const bool failed = testing::stop_failing();
      num_failed += failed;
      EXPECT_EQ(missing_in(describe(thrown[0]), {misfit ? "Error: check failed" : "RankFailed: rank 0:"}),
                "");
      if (!failed) {
        EXPECT_EQ(missing_in(describe(thrown[1]), {misfit ? "Error: check failed" : "RankFailed: rank 0:"}),
                  "");
        break;
      }
      EXPECT_EQ(describe(thrown[1]), "bad_alloc") << "allocation " << k;
    }
    EXPECT_GT(num_failed, 0);
  }
}

TEST(LoopbackFailure, AGroupRefusesImpossibleSizesAndDeadlines) {
  EXPECT_EQ(missing_in(thrown_by([] { LoopbackGroup(0, kPatient); }), {"a group has 0 ranks", "at least 1"}),
            "");
  EXPECT_EQ(missing_in(thrown_by([] { LoopbackGroup(2, milliseconds(0)); }), {"is 0 ms", "1 to 86400000 ms"}),
            "");
  EXPECT_EQ(missing_in(thrown_by([] { LoopbackGroup(2, milliseconds::max()); }), {"1 to 86400000 ms"}), "");
  LoopbackGroup group(2, kPatient);
  EXPECT_EQ(missing_in(thrown_by([&] { group.end(2); }), {"rank 2 of 2"}), "");
  EXPECT_EQ(missing_in(thrown_by([&] { group.end(-1); }), {"rank -1 of 2"}), "");
}

}  // namespace
}  // namespace hadal
