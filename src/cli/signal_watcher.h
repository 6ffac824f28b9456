// Waits for a server's SIGINT and SIGTERM on a thread of its own, so that no signal handlers are needed. The
// main thread makes the watcher before all other threads, because they must inherit the blocked signals.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace hadal::cli {

class SignalWatcher {
 public:
  using Clock = std::chrono::steady_clock;

  // SIGHUP runs `on_hangup` on the watching thread, before and after arm(). An exception that it throws is
  // logged. Without `on_hangup`, SIGHUP has its default effect.
  explicit SignalWatcher(std::function<void()> on_hangup = {});
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

  // Before this call a signal ends the process at once, with the exit code 128 + its number. After it, the
  // first signal makes wait() return, and the second one ends the process at once.
  void arm();

  // Waits for a signal or for notify(), whichever comes first, and returns its name.
  std::string wait();
  // Makes wait() return. Any thread may call it; the first call counts.
  void notify(std::string why);

  // Ends the process with kExitFailure at `time`, even if other threads hang. An earlier time from a previous
  // call remains in force. Any thread may call it.
  void exit_at(Clock::time_point time, std::string why);

 private:
  void watch();
  void hang_up() noexcept;
  void exit_when_due();

  const std::function<void()> on_hangup_;
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
