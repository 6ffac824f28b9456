#include "server/generation/background_pool.h"

#include <exception>
#include <utility>

#include "base/cancel.h"
#include "base/check.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/thread_priority.h"

namespace hadal::server {

BackgroundPool::BackgroundPool(const Options& options) : options_(options) {
  HADAL_CHECK(options.num_threads >= 1, "num_threads {}", options.num_threads);
  for (int i = 0; i < options.num_threads; ++i) threads_.emplace_back([this] { work(); });
}

BackgroundPool::~BackgroundPool() {
  stop();
}

uint64_t BackgroundPool::post(std::function<void()> task, const std::string& client) {
  const MemoryReserve::Scope reserve;  // all requests share the queue
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_ || num_queued_ >= options_.max_queued) return 0;
    const auto entry = clients_.try_emplace(client).first;
    if (entry->second.tasks.size() >= options_.max_queued_per_client) return 0;
    number = ++last_number_;
    entry->second.tasks.emplace(number, std::move(task));
    ++num_queued_;
    give_turn(*entry);
  }
  wake_.post();
  return number;
}

bool BackgroundPool::drop(uint64_t number, const std::string& client) {
  std::function<void()> dropped;  // destroyed outside of the lock, because tasks own objects
  const std::lock_guard lock(mutex_);
  const auto entry = clients_.find(client);
  if (entry == clients_.end()) return false;
  auto& [tasks, running, has_turn] = entry->second;
  const auto task = tasks.find(number);
  if (task == tasks.end()) return false;
  dropped = std::move(task->second);
  tasks.erase(task);
  --num_queued_;
  if (tasks.empty() && std::exchange(has_turn, false)) std::erase(turns_, &*entry);
  forget_if_idle(entry);
  return true;
}

// Puts the client behind those that already wait for a turn, if one of its tasks may begin.
void BackgroundPool::give_turn(Clients::value_type& entry) {
  Client& client = entry.second;
  if (client.has_turn || client.tasks.empty() || client.running >= options_.max_running_per_client) return;
  turns_.push_back(&entry);
  client.has_turn = true;
}

void BackgroundPool::forget_if_idle(Clients::iterator entry) {
  if (entry->second.running != 0 || !entry->second.tasks.empty()) return;
  clients_.erase(entry);
  if (clients_.empty()) idle_.notify_all();
}

bool BackgroundPool::wait_idle(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return idle_.wait_until(lock, deadline, [this] { return clients_.empty(); });
}

void BackgroundPool::stop() {
  stopping_ = true;
  std::deque<std::function<void()>> dropped;  // destroyed outside of the lock, because tasks own objects
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    for (auto& [name, client] : clients_) {
      for (auto& [number, task] : client.tasks) dropped.push_back(std::move(task));
      client.tasks.clear();
    }
    num_queued_ = 0;
    turns_.clear();
  }
  for (size_t i = 0; i < threads_.size(); ++i) wake_.post();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void BackgroundPool::work() {
  const MemoryReserve::Scope reserve;
  if (options_.low_priority) lower_thread_priority();
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    if (!turns_.empty()) {
      run_next(lock);
      continue;
    }
    lock.unlock();
    wake_.wait();
    lock.lock();
  }
}

void BackgroundPool::help() {
  const MemoryReserve::Scope reserve;
  std::unique_lock lock(mutex_);
  while (!turns_.empty()) run_next(lock);
}

// Runs the task whose turn it is, without the lock, which the caller holds before and after.
void BackgroundPool::run_next(std::unique_lock<std::mutex>& lock) {
  Clients::value_type& entry = *turns_.front();
  turns_.pop_front();
  Client& client = entry.second;
  client.has_turn = false;
  std::function<void()> task = std::move(client.tasks.begin()->second);
  client.tasks.erase(client.tasks.begin());
  --num_queued_;
  ++client.running;
  give_turn(entry);
  lock.unlock();
  try {
    const MemoryReserve::Pause own;
    const CancelScope scope(stopping_);
    task();
  } catch (const std::exception& error) {
    log_error("background task failed error=\"{}\"", error.what());
  }
  task = nullptr;
  lock.lock();
  --client.running;
  give_turn(entry);  // wakes no thread: this one takes the next turn itself
  forget_if_idle(clients_.find(entry.first));
}

}  // namespace hadal::server
