#include "server/background_pool.h"

#include <exception>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace hadal::server {

BackgroundPool::BackgroundPool(int num_threads, size_t max_queued) : max_queued_(max_queued) {
  HADAL_CHECK(num_threads >= 1, "num_threads {}", num_threads);
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
}

BackgroundPool::~BackgroundPool() {
  stop();
}

bool BackgroundPool::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_ || tasks_.size() >= max_queued_) return false;
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
  return true;
}

void BackgroundPool::stop() {
  stopping_ = true;
  std::deque<std::function<void()>> dropped;  // destroyed outside of the lock, because tasks own objects
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped.swap(tasks_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void BackgroundPool::work() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopped_ || !tasks_.empty(); });
      if (stopped_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    try {
      task();
    } catch (const std::exception& error) {
      log_error("background task failed error=\"{}\"", error.what());
    }
  }
}

}  // namespace hadal::server
