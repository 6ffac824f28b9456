// Controls admission to the engine: the queue limit, closing for good, and waiting until all requests have
// ended. Any thread may call it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "base/result.h"

namespace hadal {

class Gate {
 public:
  // A max_waiting of 0 means no limit.
  explicit Gate(int64_t max_waiting) : max_waiting_(max_waiting) {}

  // Counts one more waiting request. The errors are kResourceExhausted (queue full), or the reason why the
  // gate is closed.
  Result<void> enter() {
    const std::lock_guard lock(mutex_);
    if (closed_) return *closed_;
    if (max_waiting_ > 0 && waiting_ >= max_waiting_) {
      return make_status(StatusCode::kResourceExhausted,
                         "the queue is full: {} requests are waiting; allowed: {} (max-queued-requests)",
                         waiting_, max_waiting_);
    }
    ++waiting_;
    ++inside_;
    return {};
  }

  // Records that a waiting request runs for the first time.
  void admitted() {
    const std::lock_guard lock(mutex_);
    --waiting_;
  }

  // Records that a request has ended and its final chunk has been delivered.
  void left(bool was_admitted) {
    const std::lock_guard lock(mutex_);
    if (!was_admitted) --waiting_;
    if (--inside_ == 0) empty_.notify_all();
  }

  // Makes enter fail with `why` from now on; the first reason is kept.
  void close(Status why) {
    const std::lock_guard lock(mutex_);
    if (!closed_) closed_ = std::move(why);
  }

  // Returns true when all requests have ended before `timeout` is over.
  bool wait_empty(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    return empty_.wait_for(lock, timeout, [&] { return inside_ == 0; });
  }

 private:
  const int64_t max_waiting_;
  std::mutex mutex_;
  std::condition_variable empty_;
  int64_t waiting_ = 0;
  int64_t inside_ = 0;
  std::optional<Status> closed_;
};

}  // namespace hadal
