// Ends the work of xgrammar when it has used too much processor time, or before a recursive function has used
// up the stack. The library calls no function of its caller, but it has debugging checks everywhere, also in
// its inner loops. Here every one, except that of a destructor, becomes a check of the time and of the stack.
// The original checks may throw, so the replacement may throw, too.
//
// The library's warnings are changed as well, because its own class allocates memory in a destructor that
// must not throw. If memory ran out there, the process would end.
#pragma once

#include <cstdint>

#ifdef HADAL_XGRAMMAR_CORE
#include <exception>
#include <sstream>
#include <string>
#include <string_view>

#include "cpp/support/logging.h"
#undef XGRAMMAR_LOG_WARNING
#define XGRAMMAR_LOG_WARNING hadal_xgrammar::Warning().stream()
#endif

namespace hadal_xgrammar {

// While an object lives, the library's work in this thread ends once the thread has used this much processor
// time, with TimeLimitError, and once it has used a mebibyte of stack below the object, with StackLimitError.
// `check`, if not null, is called every few microseconds of the work, and may throw too.
class TimeLimit {
 public:
  explicit TimeLimit(double seconds, void (*check)() = nullptr);
  ~TimeLimit();
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;
};

#ifdef HADAL_XGRAMMAR_CORE
// A warning is passed on at the end of the statement that makes it.
class Warning {
 public:
  ~Warning() noexcept(false) {
    if (std::uncaught_exceptions() > num_exceptions_) return;  // the warning could not be made
    xgrammar::LogMessageImpl(std::string(), 0, XGRAMMAR_LOG_LEVEL_WARNING, stream_.str());
  }
  std::ostringstream& stream() { return stream_; }

 private:
  const int num_exceptions_ = std::uncaught_exceptions();
  std::ostringstream stream_;
};
#endif

void look_at_clock();
[[noreturn]] void leave_deep_stack();
extern __thread uint32_t looks_left;          // calls of look() until the clock is read
extern __thread const void* deepest_allowed;  // address on the stack, which grows towards lower ones

inline void look() {
  if (--looks_left == 0) look_at_clock();
  if (__builtin_frame_address(0) < deepest_allowed) leave_deep_stack();
}

}  // namespace hadal_xgrammar

#ifdef HADAL_XGRAMMAR_CORE
#undef XGRAMMAR_DCHECK
// The destructor of a RecursionGuard, which must not throw, calls SubtractRecursionDepth.
#define XGRAMMAR_DCHECK(x)                                                                               \
  for (std::string_view(__func__) == "SubtractRecursionDepth" ? void() : hadal_xgrammar::look(); false;) \
  XGRAMMAR_ICHECK(x)
#include "cpp/support/recursion_guard.h"
#undef XGRAMMAR_DCHECK
#define XGRAMMAR_DCHECK(x) \
  for (hadal_xgrammar::look(); false;) XGRAMMAR_ICHECK(x)
#endif
