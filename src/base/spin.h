// Threads that wait for each other spin for a moment before they sleep, so that the many short waits of a
// step do not each cost a system call.
#pragma once

#include <thread>

namespace hadal {

// This is about 50 µs of spinning, which is longer than the gap between two regions of a step and far shorter
// than a delay that a user notices.
inline constexpr int kSpinIterations = 2000;

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Returns the number of cores that this process may use, at least 1.
int available_cores();

}  // namespace hadal
