#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/rank_threads.h"
#include "tests/comm/ranks.h"

namespace hadal {
namespace {

using std::chrono::milliseconds;
using testing::expect_with_some_deadline;
using testing::missing_in;
using testing::thrown_by;

// Watch lets a test observe a model that it has given away.
struct Watch {
  std::atomic<bool> released{false};  // until then, ranks hang
  std::atomic<int> num_inside{0};     // ranks that use the model
  std::atomic<bool> destroyed{false};

  void hang() const { released.wait(false); }
  void release() {
    released = true;
    released.notify_all();
  }
  void wait_for_destruction() const { destroyed.wait(false); }
};

// Model is the owner of what bodies use.
struct Model {
  explicit Model(std::shared_ptr<Watch> by) : watch(std::move(by)) {}
  ~Model() {
    EXPECT_EQ(watch->num_inside, 0) << "the owner was destroyed before all ranks had left";
    watch->destroyed = true;
    watch->destroyed.notify_all();
  }
  const std::shared_ptr<Watch> watch;
  std::vector<float> data = std::vector<float>(8, 1);  // an element for each rank
};

// Inside lives while a rank uses the model.
struct Inside {
  explicit Inside(std::shared_ptr<Watch> by) : watch(std::move(by)) { ++watch->num_inside; }
  ~Inside() { --watch->num_inside; }
  const std::shared_ptr<Watch> watch;
};

// Runs a step in which the ranks `hanging` hang between two calls. Returns what is wrong, or "" if this step
// and a later one throw RankLost with `words`. The threads are destroyed before the lost ranks go on.
std::string lose_ranks(int num_ranks, const std::vector<int>& hanging, milliseconds deadline,
                       const std::vector<std::string>& words,
                       const std::function<void(int rank, Communicator& comm)>& others) {
  const auto watch = std::make_shared<Watch>();
  std::string wrong;
  {
    auto model = std::make_shared<Model>(watch);
    Model& used = *model;
    RankThreads ranks(num_ranks, deadline, std::move(model));
    const auto body = [&used, watch, hanging, others](int rank, Communicator& comm) {
      const Inside inside(watch);
      comm.barrier();
      if (std::find(hanging.begin(), hanging.end(), rank) == hanging.end()) {
        others(rank, comm);
        return;
      }
      watch->hang();
      used.data[rank] += 1;
      const auto late_call = [&] { comm.all_reduce(std::span(used.data).subspan(rank, 1)); };
      EXPECT_EQ(missing_in(thrown_by(late_call), {"RankLost"}), "");
      used.data[rank] += 1;
    };
    wrong += missing_in(thrown_by([&] { ranks.run(body); }), words);
    wrong += missing_in(thrown_by([&] { ranks.run([](int, Communicator&) {}); }), words);
  }
  if (watch->destroyed) wrong += "the owner was destroyed with the threads\n";
  watch->release();
  watch->wait_for_destruction();
  return wrong;
}

std::string within(milliseconds deadline) {
  return "within " + std::to_string(deadline.count()) + " ms it has not ";
}

class RankLossOf : public ::testing::TestWithParam<int> {};

TEST_P(RankLossOf, ARankThatHangsIsLostWhileOthersWaitInACall) {
  const int num_ranks = GetParam();
  const int hanging = num_ranks / 2;
  expect_with_some_deadline([&](milliseconds deadline) {
    const std::string words = "RankLost: rank " + std::to_string(hanging) + " is lost: " + within(deadline) +
                              "made call 2 (barrier), as rank ";
    return lose_ranks(num_ranks, {hanging}, deadline, {words, "the last call seen of it is 1 (barrier)"},
                      [](int, Communicator& comm) { comm.barrier(); });
  });
}

TEST_P(RankLossOf, ARankThatHangsIsLostWhenTheOthersHaveReturned) {
  const int num_ranks = GetParam();
  const int hanging = num_ranks - 1;
  expect_with_some_deadline([&](milliseconds deadline) {
    const std::string words = "RankLost: rank " + std::to_string(hanging) + " is lost: " + within(deadline) +
                              "returned, as other ranks have; the last call seen of it is 1 (barrier)";
    return lose_ranks(num_ranks, {hanging}, deadline, {words}, [](int, Communicator&) {});
  });
}

TEST_P(RankLossOf, ALossIsReportedWithTheFailureBeforeIt) {
  const int num_ranks = GetParam();
  expect_with_some_deadline([&](milliseconds deadline) {
    return lose_ranks(num_ranks, {num_ranks - 1}, deadline,
                      {"RankLost: rank " + std::to_string(num_ranks - 1) + " is lost: " + within(deadline),
                       "; before that, rank 0: no coffee"},
                      [](int rank, Communicator& comm) {
                        if (rank == 0) throw Error("no coffee");
                        comm.barrier();
                      });
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, RankLossOf, ::testing::Values(2, 3, 8),
                         [](const auto& size) { return std::to_string(size.param) + "Ranks"; });

TEST(RankLoss, SeveralRanksAreLostTogether) {
  expect_with_some_deadline([](milliseconds deadline) {
    return lose_ranks(4, {1, 2}, deadline,
                      {"RankLost: rank 1 is lost, and 1 more: " + within(deadline) + "returned"},
                      [](int, Communicator&) {});
  });
}

// A lost rank may have written anything after it was lost, so the group stays unusable. Its thread is joined
// nevertheless.
TEST(RankLoss, ARankThatReturnsLateStaysLost) {
  const auto watch = std::make_shared<Watch>();
  {
    RankThreads ranks(2, milliseconds(100), std::make_shared<Model>(watch));
    const auto body = [watch](int rank, Communicator& comm) {
      const Inside inside(watch);
      if (rank == 1) watch->hang();
      comm.barrier();
    };
    EXPECT_EQ(missing_in(thrown_by([&] { ranks.run(body); }), {"RankLost: rank 1 is lost"}), "");
    watch->release();
    while (watch->num_inside > 0) std::this_thread::yield();
    EXPECT_EQ(missing_in(thrown_by([&] { ranks.run(body); }), {"RankLost: rank 1 is lost"}), "");
  }
  watch->wait_for_destruction();
}

// Here the lost rank returns before run() has given up waiting for it, and no body throws.
TEST(RankLoss, ARankThatIsLostInACallStaysLostIfAllRanksReturn) {
  const auto watch = std::make_shared<Watch>();
  {
    RankThreads ranks(2, milliseconds(100), std::make_shared<Model>(watch));
    const auto body = [watch](int rank, Communicator& comm) {
      const Inside inside(watch);
      if (rank == 1) watch->hang();
      EXPECT_THROW(comm.barrier(), RankLost);
      watch->release();
    };
    for (int step = 0; step < 2; ++step) {
      EXPECT_EQ(missing_in(thrown_by([&] { ranks.run(body); }),
                           {"RankLost: rank 1 is lost", "made call 1 (barrier)"}),
                "");
    }
  }
  watch->wait_for_destruction();
}

}  // namespace
}  // namespace hadal
