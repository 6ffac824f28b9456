#include "server/http/line_budget.h"

#include <gtest/gtest.h>

namespace hadal::server {
namespace {

using std::chrono::milliseconds;

constexpr LineBudget::Clock::time_point kStart{std::chrono::hours(1)};

int taken(LineBudget& budget, int count, LineBudget::Clock::time_point now) {
  int lines = 0;
  for (int i = 0; i < count; ++i) lines += budget.take(now) ? 1 : 0;
  return lines;
}

TEST(LineBudget, ASecondHasAHundredLinesAndTheNextAsManyAgain) {
  LineBudget budget;
  EXPECT_EQ(taken(budget, 1000, kStart), LineBudget::kLinesPerSecond);
  EXPECT_EQ(taken(budget, 1000, kStart + milliseconds(999)), 0);
  EXPECT_EQ(taken(budget, 1000, kStart + milliseconds(1000)), LineBudget::kLinesPerSecond);
}

TEST(LineBudget, WhatWasLeftOutIsReportedOnceWhenTheSecondIsOver) {
  LineBudget budget;
  EXPECT_EQ(taken(budget, 50, kStart), 50);
  EXPECT_EQ(budget.take_left_out(kStart + milliseconds(5000)), 0);
  EXPECT_EQ(taken(budget, 300, kStart + milliseconds(5000)), 100);
  EXPECT_EQ(budget.take_left_out(kStart + milliseconds(5500)), 0) << "there may be more of them";
  EXPECT_EQ(taken(budget, 7, kStart + milliseconds(5900)), 0);
  EXPECT_EQ(budget.take_left_out(kStart + milliseconds(6000)), 207);
  EXPECT_EQ(budget.take_left_out(kStart + milliseconds(6000)), 0);
  EXPECT_EQ(taken(budget, 101, kStart + milliseconds(7000)), 100);
  EXPECT_EQ(budget.take_left_out(LineBudget::Clock::time_point::max()), 1) << "when the server ends";
}

}  // namespace
}  // namespace hadal::server
