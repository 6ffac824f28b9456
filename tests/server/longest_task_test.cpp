// Tests which tasks of an I/O thread /metrics reports.
#include "server/http/longest_task.h"

#include <gtest/gtest.h>

namespace hadal::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Returns a time in minute `minute` of the clock.
LongestTask::Clock::time_point in_minute(int64_t minute, seconds after = seconds(0)) {
  return LongestTask::Clock::time_point(minute * LongestTask::kWindow + after);
}

TEST(LongestTask, LookingChangesNothing) {
  LongestTask task;
  EXPECT_EQ(task.longest(in_minute(7)), seconds(0));
  task.note(in_minute(7), milliseconds(30));
  task.note(in_minute(7), milliseconds(50));
  task.note(in_minute(7), milliseconds(40));
  EXPECT_EQ(task.longest(in_minute(7)), milliseconds(50));
  EXPECT_EQ(task.longest(in_minute(7)), milliseconds(50));
}

TEST(LongestTask, IsForgottenAfterOneToTwoMinutes) {
  for (const seconds ended : {seconds(0), seconds(30), seconds(59)}) {
    LongestTask task;
    task.note(in_minute(7, ended), milliseconds(50));
    EXPECT_EQ(task.longest(in_minute(7, seconds(59))), milliseconds(50));
    EXPECT_EQ(task.longest(in_minute(8, seconds(59))), milliseconds(50));
    EXPECT_EQ(task.longest(in_minute(9)), seconds(0));
  }
}

TEST(LongestTask, ANewMinuteReplacesThatOfTwoMinutesAgo) {
  LongestTask task;
  task.note(in_minute(7), milliseconds(50));
  task.note(in_minute(8), milliseconds(20));
  EXPECT_EQ(task.longest(in_minute(8)), milliseconds(50));
  task.note(in_minute(9), milliseconds(10));
  EXPECT_EQ(task.longest(in_minute(9)), milliseconds(20));
  EXPECT_EQ(task.longest(in_minute(10)), milliseconds(10));
}

TEST(LongestTask, AnIdleThreadHasNone) {
  LongestTask task;
  task.note(in_minute(7), milliseconds(50));
  EXPECT_EQ(task.longest(in_minute(1000)), seconds(0));
  task.note(in_minute(1001), milliseconds(1));
  EXPECT_EQ(task.longest(in_minute(1001)), milliseconds(1));
}

}  // namespace
}  // namespace hadal::server
