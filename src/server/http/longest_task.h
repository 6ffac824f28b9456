// Keeps how long the longest task of one I/O thread took in the last one to two minutes. Reading changes
// nothing, so any number of scrapers read the same value. Only the thread itself notes its tasks; any thread
// may read.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace hadal::server {

class LongestTask {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kWindow{60};

  // Notes a task that has just ended. `end` never decreases.
  void note(Clock::time_point end, Clock::duration duration);
  // Returns the longest task that ended in the clock's minute of `now`, or in the minute before it.
  Clock::duration longest(Clock::time_point now) const;

 private:
  struct Window {
    std::atomic<int64_t> number{-1};  // minutes of the clock; -1: no task has ended in it
    std::atomic<Clock::rep> longest{0};
  };
  static int64_t number_of(Clock::time_point time) { return time.time_since_epoch() / kWindow; }

  std::array<Window, 2> windows_;  // that of minute n is windows_[n % 2]
};

}  // namespace hadal::server
