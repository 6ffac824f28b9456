// Decides how a thread of a group of ranks waits for others: how long it spins before it sleeps, and how it
// counts the time until a deadline.
#pragma once

#include <chrono>

#include "base/check.h"
#include "base/spin.h"

namespace hadal {

// A deadline is counted in slices; a slice that took longer, because the process was stopped, counts as one.
inline constexpr std::chrono::milliseconds kWaitSlice{1000};

inline constexpr std::chrono::milliseconds kMaxDeadline = std::chrono::hours(24);
inline void check_deadline(std::chrono::milliseconds deadline) {
  HADAL_CHECK(deadline.count() > 0 && deadline <= kMaxDeadline,
              "the deadline of a group is {} ms, allowed is 1 to {} ms", deadline.count(),
              kMaxDeadline.count());
}

// Returns how many times one of `num_threads` threads that wait for each other checks its condition before it
// sleeps. It is 0 if there are fewer cores than threads, because spinning would occupy a core that another
// thread needs.
inline int spin_limit(int num_threads) {
  return num_threads <= available_cores() ? kSpinIterations : 0;
}

// Returns true as soon as `done` does, or false after `limit` attempts.
template <typename Done>
bool spin_until(int limit, const Done& done) {
  for (int spins = 0; spins < limit; ++spins) {
    if (done()) return true;
    cpu_relax();
  }
  return done();
}

}  // namespace hadal
