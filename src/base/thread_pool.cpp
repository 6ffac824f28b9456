#include "base/thread_pool.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/memory_reserve.h"
#include "base/spin.h"

namespace hadal {
namespace {

void stop_and_join(std::mutex& mutex, std::atomic<bool>& stop, std::condition_variable& wake,
                   std::vector<std::thread>& threads) {
  {
    std::lock_guard lock(mutex);
    stop.store(true, std::memory_order_release);
  }
  wake.notify_all();
  for (auto& thread : threads) thread.join();
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads > 0 ? num_threads : available_cores()) {
  threads_.reserve(num_threads_ - 1);
  try {
    for (int i = 1; i < num_threads_; ++i) threads_.emplace_back([this, i] { worker(i); });
  } catch (...) {  // the system refuses a thread
    stop_and_join(mutex_, stop_, wake_, threads_);
    throw;
  }
}

ThreadPool::~ThreadPool() {
  stop_and_join(mutex_, stop_, wake_, threads_);
}

void ThreadPool::call_body(int thread_idx) {
  try {
    (*body_)(thread_idx);
  } catch (...) {
    std::lock_guard lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

void ThreadPool::run(FunctionRef<void(int)> body) {
  if (num_threads_ == 1) {
    body(0);
    return;
  }
  body_ = &body;
  pending_.store(num_threads_ - 1, std::memory_order_relaxed);
  // seq_cst pairs with the sleeper's check: either the sleeper reads the new epoch, or this thread reads its
  // increment of sleepers_.
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    { std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }
  call_body(0);
  for (int spins = 0; pending_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpinIterations) {
      cpu_relax();
    } else {
      std::this_thread::yield();  // a worker has lost its core, so it gets this one
    }
  }
  body_ = nullptr;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::worker(int thread_idx) {
  const MemoryReserve::Scope reserve;  // the work here belongs to several requests
  uint64_t seen = 0;
  while (true) {
    for (int spins = 0; spins < kSpinIterations && epoch_.load(std::memory_order_acquire) == seen; ++spins) {
      cpu_relax();
    }
    if (epoch_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [&] {
        return stop_.load(std::memory_order_acquire) || epoch_.load(std::memory_order_seq_cst) != seen;
      });
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }
    if (epoch_.load(std::memory_order_acquire) == seen) return;  // it was woken to stop
    ++seen;
    call_body(thread_idx);
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::parallel_for(int64_t count, int64_t grain, FunctionRef<void(int64_t, int64_t, int)> body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (num_threads_ == 1 || count <= grain) {
    for (int64_t begin = 0; begin < count; begin += grain) body(begin, std::min(count, begin + grain), 0);
    return;
  }
  std::atomic<int64_t> next{0};
  run([&](int thread_idx) {
    while (true) {
      const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= count) return;
      body(begin, std::min(count, begin + grain), thread_idx);
    }
  });
}

}  // namespace hadal
