#include "base/cancel.h"

#include <gtest/gtest.h>

#include <thread>

namespace hadal {
namespace {

TEST(Cancel, WithoutAScopeNothingIsCancelled) {
  EXPECT_FALSE(is_cancelled());
  check_cancelled();
}

TEST(Cancel, AnyScopeAroundTheWorkCancelsIt) {
  std::atomic<bool> outer = false, inner = false;
  const CancelScope around(outer);
  {
    const CancelScope within(inner);
    check_cancelled();
    inner = true;
    EXPECT_THROW(check_cancelled(), CancelledError);
  }
  EXPECT_FALSE(is_cancelled()) << "its scope has ended";
  outer = true;
  std::atomic<bool> other = false;
  const CancelScope within(other);
  EXPECT_TRUE(is_cancelled());
}

TEST(Cancel, AScopeIsThatOfItsThread) {
  std::atomic<bool> flag = true;
  const CancelScope scope(flag);
  std::thread([] { EXPECT_FALSE(is_cancelled()); }).join();
  EXPECT_TRUE(is_cancelled());
}

}  // namespace
}  // namespace hadal
