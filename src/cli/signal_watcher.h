// Waits for SIGINT and SIGTERM of a server on a thread of its own, so that there are no signal handlers. The
// main thread makes it before all other threads, because they inherit the blocked signals.
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

  // Before this call a signal ends the process at once, with the exit code 128 + its number. After it, the
  // first signal makes wait() return, and the second one ends the process at once.
  void arm();

  // Waits for a signal or for notify(), whichever comes first, and returns its name.
  std::string wait();
  // May be called by any thread; the first call counts.
  void notify(std::string why);

  // Ends the process with kExitFailure at `time`, even if other threads hang. An earlier time from a previous
  // call remains in force. May be called by any thread.
  void exit_at(Clock::time_point time, std::string why);

 private:
  void watch();
  void exit_when_due();

  std::mutex mutex_;  // guards the fields below
  std::condition_variable wake_;
  std::string why_;
  std::optional<Clock::time_point> exit_at_;
  std::string exit_why_;

  std::atomic<bool> armed_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace hadal::cli
