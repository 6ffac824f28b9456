// Bounds the lines of the access log that clients without a key can cause: those of refused requests and of
// paths that need no key. Without a bound, anybody who can connect could fill the disk.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

namespace hadal::server {

// Any thread may call a LineBudget. Each call passes the current time. Times of different threads may come
// out of order by the moment between reading the clock and the call.
class LineBudget {
 public:
  static constexpr int kLinesPerSecond = 100;
  using Clock = std::chrono::steady_clock;

  // Returns true if a line may be written at this time; otherwise it is counted as left out.
  bool take(Clock::time_point now);
  // Returns how many lines were left out since the last report. It returns 0 until the second in which the
  // first of them was left out is over.
  int64_t take_left_out(Clock::time_point now);

 private:
  static constexpr std::chrono::seconds kWindow{1};

  std::mutex mutex_;
  Clock::time_point began_{};  // guarded by mutex_, as everything below: the second that is counted
  int taken_ = 0;
  int64_t left_out_ = 0;
  Clock::time_point left_out_since_{};
};

}  // namespace hadal::server
