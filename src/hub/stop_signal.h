// Tells the threads of one download to end, because one of them failed or the user cancelled. Any thread may
// call the functions.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>

namespace hadal::hub {

class StopSignal {
 public:
  // Any thread may call `is_cancelled`.
  explicit StopSignal(std::function<bool()> is_cancelled) : is_cancelled_(std::move(is_cancelled)) {}

  void set() { is_set_ = true; }
  bool is_set() const { return is_set_ || (is_cancelled_ && is_cancelled_()); }

  // Sleeps for `time`, or until the signal is set. Returns true if the caller may go on.
  bool wait(std::chrono::milliseconds time) const {
    constexpr std::chrono::milliseconds kStep{50};
    const auto end = std::chrono::steady_clock::now() + time;
    while (!is_set()) {
      const auto left = end - std::chrono::steady_clock::now();
      if (left <= left.zero()) return true;
      std::this_thread::sleep_for(std::min<std::chrono::steady_clock::duration>(left, kStep));
    }
    return false;
  }

 private:
  std::function<bool()> is_cancelled_;
  std::atomic<bool> is_set_{false};
};

}  // namespace hadal::hub
