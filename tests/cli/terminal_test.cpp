#include "cli/terminal.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "base/log.h"
#include "base/status_line.h"

namespace hadal::cli {
namespace {

TEST(TimeLeft, IsWhatTheRestTakesAtTheSamePace) {
  EXPECT_EQ(time_left(50, 100, 12.0), "12 s");
  EXPECT_EQ(time_left(1, 3, 1.2), "3 s");  // rounded up
  EXPECT_EQ(time_left(10, 110, 20.0), "3 min 20 s");
  EXPECT_EQ(time_left(1, 2, 3900.0), "1 h 5 min");
  EXPECT_EQ(time_left(1, ~size_t{0}, 1e9), "277777 h 46 min");
}

TEST(TimeLeft, IsUnknownAtTheBeginningAndAtTheEnd) {
  EXPECT_EQ(time_left(0, 100, 12.0), "");
  EXPECT_EQ(time_left(1, 100, 0.5), "");
  EXPECT_EQ(time_left(100, 100, 12.0), "");
  EXPECT_EQ(time_left(3, 0, 12.0), "");
}

// Returns what `write` writes to stderr.
template <typename F>
std::string stderr_of(F write) {
  int pipe[2];
  EXPECT_EQ(::pipe(pipe), 0);
  const int before = ::dup(STDERR_FILENO);
  ::dup2(pipe[1], STDERR_FILENO);
  write();
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  ::close(pipe[1]);
  std::string text(4096, '\0');
  const ssize_t count = ::read(pipe[0], text.data(), text.size());
  ::close(pipe[0]);
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return text;
}

TEST(StatusLine, LogLinesAreWrittenAboveIt) {
  const std::string text = stderr_of([] {
    set_status_line("bar 1");
    log_info("event key=1");
    set_status_line("bar 2");
    set_status_line("");
    set_status_line("");
    log_info("event key=2");
  });
  EXPECT_THAT(
      text, testing::MatchesRegex("\r\x1b\\[Kbar 1\r\x1b\\[K[^\r]*event key=1\nbar 1\r\x1b\\[Kbar 2\r\x1b\\[K"
                                  "\\[[^\r]*event key=2\n"));
}

}  // namespace
}  // namespace hadal::cli
