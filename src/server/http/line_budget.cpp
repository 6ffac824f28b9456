#include "server/http/line_budget.h"

#include <utility>

namespace hadal::server {

bool LineBudget::take(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (now - began_ >= kWindow) {
    began_ = now;
    taken_ = 0;
  }
  if (taken_ < kLinesPerSecond) {
    ++taken_;
    return true;
  }
  if (left_out_++ == 0) left_out_since_ = began_;
  return false;
}

int64_t LineBudget::take_left_out(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (left_out_ == 0 || now - left_out_since_ < kWindow) return 0;
  return std::exchange(left_out_, 0);
}

}  // namespace hadal::server
