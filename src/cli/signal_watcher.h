// SIGINT and SIGTERM of a server: a thread of its own waits for them, so that no handler runs anywhere. Made
// by the main thread before any other thread that may be interrupted (they inherit the blocked signals).
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace hadal::cli {

class SignalWatcher {
 public:
  using Clock = std::chrono::steady_clock;

  SignalWatcher();
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

  // Before: a signal ends the process at once (128 + its number). After: the first one is what wait() returns
  // for, the second ends the process at once.
  void arm();

  // Waits for a signal or for notify(), whichever comes first; says which.
  std::string wait();
  // From any thread; the first one counts.
  void notify(std::string why);

  // Ends the process with kExitFailure at `time`, whatever its other threads do then: they may hang. An
  // earlier time given before stays. Any thread.
  void exit_at(Clock::time_point time, std::string why);

 private:
  void watch();
  void exit_when_due();

  std::mutex mutex_;  // of the following
  std::condition_variable wake_;
  std::string why_;
  std::optional<Clock::time_point> exit_at_;
  std::string exit_why_;

  std::atomic<bool> armed_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace hadal::cli
