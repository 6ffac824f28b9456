// A server ends on a signal even if its other threads hang.
#include "cli/signal_watcher.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

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

}  // namespace
}  // namespace hadal::cli
