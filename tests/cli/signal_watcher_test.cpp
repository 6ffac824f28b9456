// Tests that a server ends on a signal even if its other threads hang.
#include "cli/signal_watcher.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <new>
#include <thread>

#include "base/log.h"
#include "cli/run.h"

namespace hadal::cli {
namespace {

using Clock = SignalWatcher::Clock;

[[noreturn]] void hang() {
  while (true) ::pause();
}

TEST(SignalWatcherDeathTest, EndsAHangingProcessAtTheEarliestTimeGiven) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        SignalWatcher signals;
        signals.arm();
        ::kill(::getpid(), SIGTERM);
        if (signals.wait() != "SIGTERM") _exit(99);
        signals.exit_at(Clock::now() + std::chrono::hours(1), "draining did not end");
        signals.exit_at(Clock::now() + std::chrono::milliseconds(100), "the engine has stalled");
        signals.exit_at(Clock::now() + std::chrono::hours(2), "never said");
        hang();
      },
      ::testing::ExitedWithCode(kExitFailure), "server ended reason=\"the engine has stalled\"");
}

TEST(SignalWatcherDeathTest, ASecondSignalEndsTheProcessAtOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        SignalWatcher signals;
        signals.arm();
        ::kill(::getpid(), SIGTERM);
        signals.wait();
        ::kill(::getpid(), SIGTERM);
        hang();
      },
      ::testing::ExitedWithCode(128 + SIGTERM), "");
}

TEST(SignalWatcherDeathTest, AHangupThatRunsOutOfMemoryIsLoggedAndTheNextIsServed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::atomic<int> calls{0};
        const SignalWatcher signals([&calls] {
          if (++calls == 1) throw std::bad_alloc();
        });
        for (int sent = 1; sent <= 2; ++sent) {
          ::kill(::getpid(), SIGHUP);
          while (calls < sent) std::this_thread::yield();
        }
        flush_log(std::chrono::seconds(10));
        _exit(7);
      },
      ::testing::ExitedWithCode(7), "SIGHUP was not carried out error=\"std::bad_alloc\"");
}

}  // namespace
}  // namespace hadal::cli
