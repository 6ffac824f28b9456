#include "time_limit.h"

#include <time.h>

#include "time_limit_error.h"

namespace hadal_xgrammar {

namespace {

constexpr uint32_t kLooks = 2048;  // a few microseconds
constexpr int64_t kStackBytes = 1 << 20;

__thread double limit_s = 0.0;  // on this thread's clock of processor time; 0: none
__thread void (*check_also)() = nullptr;

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

__thread uint32_t looks_left = kLooks;
__thread const void* deepest_allowed = nullptr;

void look_at_clock() {
  looks_left = kLooks;
  if (check_also != nullptr) check_also();
  if (limit_s == 0.0 || thread_seconds() < limit_s) return;
  limit_s = 0.0;  // throws only once, because the code that catches it may call look() again
  throw TimeLimitError("it takes too long to work with");
}

void leave_deep_stack() {
  throw StackLimitError();  // it allocates nothing, because an allocation checks the stack as well
}

TimeLimit::TimeLimit(double seconds, void (*check)()) {
  looks_left = kLooks;
  check_also = check;
  limit_s = thread_seconds() + seconds;
  deepest_allowed = static_cast<const char*>(__builtin_frame_address(0)) - kStackBytes;
}

TimeLimit::~TimeLimit() {
  limit_s = 0.0;
  check_also = nullptr;
  deepest_allowed = nullptr;
}

}  // namespace hadal_xgrammar
