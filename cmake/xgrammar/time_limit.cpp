#include "time_limit.h"

#include <time.h>

#include "time_limit_error.h"

namespace hadal_xgrammar {

namespace {

constexpr uint32_t kLooks = 2048;  // a few microseconds

__thread double limit_s = 0.0;  // on this thread's clock of processor time; 0: none

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

__thread uint32_t looks_left = kLooks;

void look_at_clock() {
  looks_left = kLooks;
  if (limit_s == 0.0 || thread_seconds() < limit_s) return;
  limit_s = 0.0;  // once: what is thrown may be caught by code that looks again
  throw TimeLimitError("it takes too long to work with");
}

TimeLimit::TimeLimit(double seconds) {
  looks_left = kLooks;
  limit_s = thread_seconds() + seconds;
}

TimeLimit::~TimeLimit() {
  limit_s = 0.0;
}

}  // namespace hadal_xgrammar
