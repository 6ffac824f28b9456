// Detects when the engine thread stays in one phase for too long, and reports the phase and the requests. The
// engine thread announces its phase with three relaxed stores, and the watchdog's own thread checks them from
// time to time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/request_id.h"

namespace hadal {

class Watchdog {
 public:
  // A timeout_s of 0 disables it at no cost. on_stall may be null; every stall is logged as well.
  Watchdog(double timeout_s, std::function<void(const std::string&)> on_stall);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // The engine thread calls these. `phase` must be a literal.
  bool enabled() const { return timeout_ns_ > 0; }
  void enter(const char* phase);
  void idle();  // nothing to do, which may last any time
  // Names the request whose stop condition, constraint or sink is being called; 0: none.
  void set_request(RequestId id) { request_.store(id, std::memory_order_relaxed); }
  // Names the requests of the current step.
  void set_step(int64_t step, std::vector<RequestId>& ids);

 private:
  void watch();
  void report(int64_t since_ns, int64_t now_ns);

  const int64_t timeout_ns_;
  const std::function<void(const std::string&)> on_stall_;
  std::atomic<const char*> phase_{"idle"};
  std::atomic<int64_t> since_ns_{0};  // 0: idle
  std::atomic<RequestId> request_{0};

  std::mutex mutex_;  // guards everything below
  int64_t step_ = 0;
  std::vector<RequestId> ids_;
  bool stop_ = false;
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace hadal
