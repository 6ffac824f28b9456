// Lets the work of xgrammar be given up after a while. The library calls no function of its caller, but has
// debugging checks everywhere, also in its inner loops. Here each of them looks at the time instead. Such a
// check may throw, so this may too.
#pragma once

#include <cstdint>

#ifdef HADAL_XGRAMMAR_CORE
#include "cpp/support/logging.h"
#undef XGRAMMAR_DCHECK
#define XGRAMMAR_DCHECK(x) \
  for (hadal_xgrammar::look(); false;) XGRAMMAR_ICHECK(x)
#endif

namespace hadal_xgrammar {

// While an object lives, the library's work in this thread ends once the thread has used this much processor
// time, with std::runtime_error("it takes too long …").
class TimeLimit {
 public:
  explicit TimeLimit(double seconds);
  ~TimeLimit();
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;
};

void look_at_clock();
extern __thread uint32_t looks_left;  // until the clock is looked at

inline void look() {
  if (--looks_left == 0) look_at_clock();
}

}  // namespace hadal_xgrammar
