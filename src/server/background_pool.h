// A few threads for work that is too slow for an I/O thread and does not belong to the engine: one pool
// compiles grammars, another executes operators' requests. Any thread may post.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace hadal::server {

class BackgroundPool {
 public:
  // num_threads ≥ 1; at most `max_queued` tasks may wait.
  explicit BackgroundPool(int num_threads, size_t max_queued = 1024);
  // Calls stop().
  ~BackgroundPool();
  BackgroundPool(const BackgroundPool&) = delete;
  BackgroundPool& operator=(const BackgroundPool&) = delete;

  // Returns false, and does nothing, if the queue is full or the pool has stopped. A task must not throw;
  // exceptions are logged.
  bool post(std::function<void()> task);

  // Finishes running tasks and drops waiting ones. Idempotent.
  void stop();
  // Announces that stop() will follow: tasks that check stopping() may return early. The others still run.
  void announce_stop() { stopping_ = true; }
  // True if the end has been announced or has begun; a long task may check it to end early.
  bool stopping() const { return stopping_; }

 private:
  void work();

  const size_t max_queued_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stopped_ = false;
  std::atomic<bool> stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace hadal::server
