#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace hadal {
namespace {

// Waits until every other thread of the process waits in the kernel, so that no worker spins any more.
void wait_until_others_sleep() {
  const auto others_sleep = [] {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      if (task.path().filename() == std::to_string(::gettid())) continue;
      std::string stat;
      std::getline(std::ifstream(task.path() / "stat"), stat);
      if (stat.find(") S ") == stat.npos) return false;  // "id (name) state …"
    }
    return true;
  };
  while (!others_sleep()) std::this_thread::yield();
}

class ThreadPoolOf : public ::testing::TestWithParam<int> {};

TEST_P(ThreadPoolOf, RunCallsEachThreadIndexOnce) {
  ThreadPool pool(GetParam());
  ASSERT_EQ(pool.num_threads(), GetParam());
  std::vector<std::atomic<int>> calls(GetParam());
  pool.run([&](int thread_idx) { calls.at(thread_idx).fetch_add(1); });
  for (const auto& count : calls) EXPECT_EQ(count.load(), 1);
}

TEST_P(ThreadPoolOf, ParallelForVisitsEveryIndexExactlyOnce) {
  ThreadPool pool(GetParam());
  for (const int64_t count : {0, 1, 2, 7, 64, 1000, 1001}) {
    for (const int64_t grain : {-3, 0, 1, 3, 64, 5000}) {
      std::vector<std::atomic<int>> visits(count);
      pool.parallel_for(count, grain, [&](int64_t begin, int64_t end, int thread_idx) {
        ASSERT_LT(begin, end);
        ASSERT_LE(end - begin, std::max<int64_t>(grain, 1));
        ASSERT_GE(thread_idx, 0);
        ASSERT_LT(thread_idx, pool.num_threads());
        for (int64_t i = begin; i < end; ++i) visits.at(i).fetch_add(1);
      });
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(visits[i].load(), 1) << "index " << i << " of " << count << ", grain " << grain;
      }
    }
  }
}

// The workers' plain writes must be visible after run() without further synchronisation, and the caller's
// writes must be visible to them: TSan checks here whether the pool orders them.
TEST_P(ThreadPoolOf, OrdersPlainAccessesAcrossThousandsOfRuns) {
  constexpr int kRounds = 5000;
  ThreadPool pool(GetParam());
  std::vector<int64_t> input(64);
  std::vector<int64_t> output(64);
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < input.size(); ++i) input[i] = round + static_cast<int64_t>(i);
    pool.parallel_for(64, 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) output[i] = 2 * input[i];
    });
    for (size_t i = 0; i < output.size(); ++i) ASSERT_EQ(output[i], 2 * (round + static_cast<int64_t>(i)));
  }
}

TEST_P(ThreadPoolOf, WakesWorkersThatHaveGoneToSleep) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 20; ++round) {
    wait_until_others_sleep();
    std::atomic<int> calls{0};
    pool.run([&](int) { calls.fetch_add(1); });
    ASSERT_EQ(calls.load(), GetParam());
  }
}

TEST_P(ThreadPoolOf, RethrowsAnExceptionOfAnyThreadAndStaysUsable) {
  ThreadPool pool(GetParam());
  for (int thrower = 0; thrower < GetParam(); ++thrower) {
    try {
      pool.run([&](int thread_idx) {
        if (thread_idx == thrower) throw std::runtime_error("thread " + std::to_string(thread_idx));
      });
      FAIL() << "the exception of thread " << thrower << " was lost";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "thread " + std::to_string(thrower));
    }
    std::atomic<int> calls{0};
    pool.run([&](int) { calls.fetch_add(1); });
    EXPECT_EQ(calls.load(), GetParam());
  }
}

TEST_P(ThreadPoolOf, RethrowsOneExceptionWhenAllThreadsThrow) {
  ThreadPool pool(GetParam());
  EXPECT_THROW(pool.run([](int) { throw std::runtime_error("all"); }), std::runtime_error);
  EXPECT_NO_THROW(pool.run([](int) {}));
}

TEST_P(ThreadPoolOf, StopsCleanlyWhetherUsedOrNot) {
  std::atomic<int> calls{0};
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(GetParam());
    if (i % 2 == 0) pool.run([&](int) { calls.fetch_add(1); });
  }
  EXPECT_EQ(calls.load(), 25 * GetParam());
}

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolOf, ::testing::Values(1, 2, 3, 8),
                         [](const auto& size) { return std::to_string(size.param) + "Threads"; });

TEST(ThreadPool, APoolOfOneRunsOnTheCallingThread) {
  ThreadPool pool(1);
  const auto caller = std::this_thread::get_id();
  pool.run([&](int) { EXPECT_EQ(std::this_thread::get_id(), caller); });
  pool.parallel_for(10, 2, [&](int64_t, int64_t, int) { EXPECT_EQ(std::this_thread::get_id(), caller); });
}

TEST(ThreadPool, TheCallerIsThreadZero) {
  ThreadPool pool(4);
  const auto caller = std::this_thread::get_id();
  pool.run([&](int thread_idx) { EXPECT_EQ(std::this_thread::get_id() == caller, thread_idx == 0); });
}

TEST(ThreadPool, ZeroMeansOnePerAvailableCore) {
  ThreadPool pool(0);
  EXPECT_GE(pool.num_threads(), 1);
  EXPECT_LE(pool.num_threads(), static_cast<int>(std::thread::hardware_concurrency()));
}

TEST(ThreadPool, TwoPoolsWorkSideBySide) {
  ThreadPool a(2);
  ThreadPool b(3);
  std::atomic<int> calls{0};
  std::thread other([&] {
    for (int i = 0; i < 200; ++i) b.run([&](int) { calls.fetch_add(1); });
  });
  for (int i = 0; i < 200; ++i) a.run([&](int) { calls.fetch_add(1); });
  other.join();
  EXPECT_EQ(calls.load(), 200 * (2 + 3));
}

}  // namespace
}  // namespace hadal
