// Measures the processor time of a thread.
#pragma once

#include <time.h>

namespace hadal {

// Returns the processor time that the calling thread has used, in seconds.
inline double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace hadal
