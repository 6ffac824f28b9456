// Tests that one call logs one line, and that a hanging output blocks no caller.
#include "base/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "base/log_writer.h"

namespace hadal {
namespace {

constexpr std::chrono::minutes kLong{5};

TEST(Log, EscapesAllButPrintableAscii) {
  ::testing::internal::CaptureStderr();
  log_info("rid={}", std::string("a\n[2026] info forged\x1b[31m\x7f \xc2\x9b ä\0b", 34));
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("rid=a\\n[2026] info forged\\x1b[31m\\x7f \\xc2\\x9b \\xc3\\xa4\\x00b"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find('\n'), text.size() - 1) << text;
}

TEST(Log, AsyncLinesAreWrittenAfterAFlushAndAtTheEnd) {
  ::testing::internal::CaptureStderr();
  {
    const AsyncLogging async;
    log_info("one");
    flush_log(kLong);
    log_warning("two");
  }
  log_info("three");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_LT(text.find("info one"), text.find("warning two"));
  EXPECT_LT(text.find("warning two"), text.find("info three"));
  EXPECT_NE(text.find("three"), std::string::npos);
}

// This output blocks until it is opened.
class Valve {
 public:
  std::function<void(const LogLine&)> write() {
    return [this](const LogLine& line) {
      std::unique_lock lock(mutex_);
      at_work_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return open_; });
      lines_.push_back(line);
    };
  }
  void wait_at_work() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return at_work_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  std::vector<LogLine> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool at_work_ = false;
  bool open_ = false;
  std::vector<LogLine> lines_;
};

TEST(LogWriter, AHangingOutputBlocksNoCallerAndLostLinesAreCounted) {
  Valve valve;
  LogWriter writer(valve.write());
  writer.push(LogLevel::kInfo, "first");
  valve.wait_at_work();
  for (int i = 0; i < 20'000; ++i) writer.push(LogLevel::kInfo, "flood");
  writer.push(LogLevel::kError, "important");
  EXPECT_FALSE(writer.flush(std::chrono::milliseconds(1)));
  valve.open();
  ASSERT_TRUE(writer.flush(kLong));
  const std::vector<LogLine> lines = valve.lines();
  ASSERT_EQ(lines.size(), 1U + 16'384 + 2);
  EXPECT_EQ(lines.front().text, "first");
  EXPECT_EQ(lines[lines.size() - 2].text, "important");
  EXPECT_EQ(lines.back().text, "log output was too slow: 3616 lines dropped");
  EXPECT_EQ(lines.back().level, LogLevel::kWarning);
  EXPECT_TRUE(writer.stop(kLong));
  writer.push(LogLevel::kInfo, "too late");
  EXPECT_TRUE(writer.flush(kLong));
  EXPECT_EQ(valve.lines().size(), lines.size());
}

TEST(LogWriter, TheQueueIsBoundedInBytesToo) {
  Valve valve;
  LogWriter writer(valve.write());
  writer.push(LogLevel::kInfo, "first");
  valve.wait_at_work();
  for (int i = 0; i < 40; ++i) writer.push(LogLevel::kInfo, std::string(1 << 20, 'x'));
  valve.open();
  ASSERT_TRUE(writer.flush(kLong));
  EXPECT_EQ(valve.lines().size(), 1U + 32 + 1);
}

// Runs in a process of its own, because that process can log nothing afterwards.
TEST(LogDeathTest, TheProcessEndsAlthoughStderrIsNotRead) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        int ends[2];
        if (pipe(ends) != 0 || dup2(ends[1], STDERR_FILENO) < 0) _exit(1);
        {
          const AsyncLogging async;
          for (int i = 0; i < 100; ++i) log_error("{}", std::string(10'000, 'x'));
        }
        log_error("this line is never written");
        std::exit(7);
      },
      ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace hadal
