#include "comm/rank_threads.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/memory_reserve.h"
#include "comm/wait.h"

namespace hadal {

// The state that the caller and the rank threads share. Each thread keeps a reference, so that everything
// that a lost rank may still use stays alive. The members are destroyed from the last to the first, so
// `owner` outlives the body and the group. If a rank is lost, its thread may be the one that destroys them.
struct RankThreads::Shared {
  Shared(int num_ranks, std::chrono::milliseconds limit, std::shared_ptr<void> everything)
      : owner(std::move(everything)),
        deadline(limit),
        spins(spin_limit(num_ranks + 1)),
        group(num_ranks, limit),
        running(num_ranks, false) {}

  static void work(std::shared_ptr<Shared> reference, int rank);
  void call_body(int rank) noexcept;
  void wait_for_all();

  const std::shared_ptr<void> owner;
  const std::chrono::milliseconds deadline;
  const int spins;
  LoopbackGroup group;
  std::function<void(int, Communicator&)> body;  // changes only while no rank is running

  std::mutex mutex;  // guards all that is below; atomics are written under it and may be read without it
  std::condition_variable wake;
  std::condition_variable all_returned;
  std::atomic<uint64_t> num_steps{0};
  std::atomic<bool> stopping{false};
  std::atomic<int> num_running{0};
  std::vector<bool> running;   // [num_ranks]
  std::exception_ptr failure;  // the first one of this step
};

// Runs on a rank's thread until the group ends.
void RankThreads::Shared::work(std::shared_ptr<Shared> reference, int rank) {
  const MemoryReserve::Scope reserve;                           // what runs here belongs to several requests
  const std::shared_ptr<Shared> shared = std::move(reference);  // released inside the scope
  for (uint64_t step = 1;; ++step) {
    const auto called = [&] {
      return shared->num_steps.load(std::memory_order_acquire) >= step ||
             shared->stopping.load(std::memory_order_acquire);
    };
    if (!spin_until(shared->spins, called)) {
      std::unique_lock lock(shared->mutex);
      shared->wake.wait(lock, called);
    }
    if (shared->num_steps.load(std::memory_order_acquire) < step) return;  // it was woken to stop
    shared->call_body(rank);
    std::unique_lock lock(shared->mutex);
    shared->running[rank] = false;
    if (shared->num_running.fetch_sub(1, std::memory_order_release) > 1) continue;
    lock.unlock();
    shared->all_returned.notify_all();
  }
}

void RankThreads::Shared::call_body(int rank) noexcept {
  // The failure is stored before the group fails, so that failures on other ranks that follow from it are
  // stored later.
  const auto store = [&](std::string_view why) {
    {
      std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
    group.fail(rank, why);
  };
  try {
    body(rank, group.end(rank));
  } catch (const std::exception& error) {
    store(error.what());
  } catch (...) {
    store("an exception of an unknown type");
  }
}

// Returns once all ranks have returned. Throws RankLost if only some of them return and the others exceed the
// deadline.
void RankThreads::Shared::wait_for_all() {
  const auto returned = [&] { return num_running.load(std::memory_order_acquire) == 0; };
  if (spin_until(spins, returned)) return;
  std::unique_lock lock(mutex);
  int num_missing = group.num_ranks();
  auto left = deadline;
  while (left > std::chrono::milliseconds::zero()) {
    const auto slice = std::min(left, kWaitSlice);
    if (all_returned.wait_for(lock, slice, returned)) return;
    // The deadline runs only once a rank has returned, and each further return restarts it.
    const int missing = num_running.load(std::memory_order_relaxed);
    left = missing == group.num_ranks() || missing < num_missing ? deadline : left - slice;
    num_missing = missing;
  }
  const auto first = std::find(running.begin(), running.end(), true);
  group.lose(static_cast<int>(first - running.begin()), num_missing, "returned, as other ranks have");
  group.recover();  // throws
}

RankThreads::RankThreads(int num_ranks, std::chrono::milliseconds deadline, std::shared_ptr<void> owner)
    : shared_(std::make_shared<Shared>(num_ranks, deadline, std::move(owner))) {
  threads_.reserve(num_ranks);
  try {
    for (int rank = 0; rank < num_ranks; ++rank) threads_.emplace_back(&Shared::work, shared_, rank);
  } catch (...) {  // the system refuses a thread
    stop();
    throw;
  }
}

RankThreads::~RankThreads() {
  stop();
}

void RankThreads::stop() noexcept {
  std::unique_lock lock(shared_->mutex);
  shared_->stopping.store(true, std::memory_order_release);
  for (size_t rank = 0; rank < threads_.size(); ++rank) {
    if (shared_->running[rank]) threads_[rank].detach();
  }
  lock.unlock();
  shared_->wake.notify_all();
  for (auto& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

int RankThreads::num_ranks() const {
  return shared_->group.num_ranks();
}

void RankThreads::check_usable() {
  shared_->group.recover();
}

void RankThreads::run(std::function<void(int rank, Communicator& comm)> body) {
  Shared& shared = *shared_;
  HADAL_CHECK(body != nullptr, "a step needs a function to run");
  check_usable();
  {
    std::lock_guard lock(shared.mutex);
    shared.body = std::move(body);
    shared.failure = nullptr;
    shared.running.assign(shared.running.size(), true);
    shared.num_running.store(num_ranks(), std::memory_order_relaxed);
    shared.num_steps.fetch_add(1, std::memory_order_release);
  }
  shared.wake.notify_all();
  shared.wait_for_all();
  shared.body = nullptr;
  const std::exception_ptr failure = std::exchange(shared.failure, nullptr);
  shared.group.recover();  // throws if a rank was lost in a call, even if it has returned since
  if (failure) std::rethrow_exception(failure);
}

}  // namespace hadal
