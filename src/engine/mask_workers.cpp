#include "engine/mask_workers.h"

#include <time.h>

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/memory_reserve.h"
#include "base/thread_priority.h"

namespace hadal {

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void MaskTask::make(const MaskWorkersOptions& options) {
  const double begin = options.clock();
  try {
    if (token_) {
      HADAL_CHECK(constraint_->accept_token(*token_), "the grammar refuses token {}, which it allowed before",
                  *token_);
    }
    mask_.assign(num_words_, 0);
    constraint_->fill_mask(mask_);
  } catch (const BadRequest& error) {
    set_error(error.what(), AbortReason::kRequest);
  } catch (const std::bad_alloc&) {
    set_error("no memory for the grammar's mask", AbortReason::kMemory);
  } catch (const std::exception& error) {
    set_error(error.what(), AbortReason::kFault);
  }
  last_s_ = options.clock() - begin;
  used_s_ += last_s_;
  ++num_masks_;
  if (!error_.empty()) return;
  if (used_s_ > options.limits.all_masks_s(static_cast<double>(num_masks_))) {
    const MemoryReserve::Scope reserve;
    error_ = fmt::format(
        "the grammar is too expensive: {} tokens took {:.1f} s of processor time; allowed are {} s and {} s "
        "for each token",
        num_masks_, used_s_, options.limits.base_s, options.limits.per_token_s);
    error_reason_ = AbortReason::kRequest;
  }
}

void MaskTask::set_error(const char* what, AbortReason reason) {
  const MemoryReserve::Scope reserve;
  error_ = what;
  error_reason_ = reason;
}

MaskWorkers::MaskWorkers(std::function<void()> on_late, MaskWorkersOptions options)
    : options_(std::move(options)), on_late_(std::move(on_late)) {
  const int num_cores = static_cast<int>(std::thread::hardware_concurrency());
  try {
    start_threads(options_.num_quick > 0 ? options_.num_quick : std::clamp(num_cores / 4, 1, 4), false);
    start_threads(options_.num_slow > 0 ? options_.num_slow : std::clamp(num_cores / 8, 1, 2), true);
  } catch (const std::exception&) {
    stop();
    throw;
  }
}

MaskWorkers::~MaskWorkers() {
  stop();
}

void MaskWorkers::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    queued_.clear();
  }
  to_quick_.notify_all();
  to_slow_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MaskWorkers::start_threads(int count, bool slow_lane) {
  threads_.reserve(threads_.size() + static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    try {
      threads_.emplace_back([this, slow_lane] { work(slow_lane); });
    } catch (const std::system_error&) {  // the system has no more threads; one in each lane is enough
      if (i > 0) return;
      throw;
    }
  }
}

void MaskWorkers::post(const std::shared_ptr<MaskTask>& task, std::optional<int32_t> token_id) {
  bool is_slow = false;
  {
    const std::lock_guard lock(mutex_);
    HADAL_CHECK(task->state_ == MaskTask::State::kIdle, "a mask is begun before the one ahead of it is used");
    task->state_ = MaskTask::State::kQueued;
    task->token_ = token_id;
    is_slow = task->is_slow();
    task->is_awaitable_ = task->num_masks_ == 0 || !is_slow;
    queued_.push_back(task);
  }
  (is_slow ? to_slow_ : to_quick_).notify_one();
}

void MaskWorkers::drop(const std::shared_ptr<MaskTask>& task) {
  const std::lock_guard lock(mutex_);
  if (task->state_ == MaskTask::State::kQueued) std::erase(queued_, task);
}

void MaskWorkers::wait(std::span<MaskTask* const> tasks, Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  for (MaskTask* task : tasks) {
    const bool counts = task->state_ != MaskTask::State::kReady && task->is_awaitable_;
    task->is_waited_for_ = counts;
    num_waited_for_ += counts ? 1 : 0;
  }
  to_engine_.wait_until(lock, deadline, [this] { return num_waited_for_ == 0; });
  for (MaskTask* task : tasks) task->is_waited_for_ = false;
  num_waited_for_ = 0;
}

MaskWorkers::Outcome MaskWorkers::take(MaskTask& task, std::span<uint32_t> words) {
  const std::lock_guard lock(mutex_);
  const bool is_ready = task.state_ == MaskTask::State::kReady;
  task.wakes_ = !is_ready || task.is_slow();
  if (!is_ready) return {};
  task.state_ = MaskTask::State::kIdle;
  if (!task.error_.empty()) return {.is_ready = true, .error = task.error_, .reason = task.error_reason_};
  HADAL_CHECK_EQ(words.size(), task.mask_.size());
  std::copy(task.mask_.begin(), task.mask_.end(), words.begin());
  return {.is_ready = true, .is_slow = task.is_slow()};
}

bool MaskWorkers::is_ready(const MaskTask& task) {
  const std::lock_guard lock(mutex_);
  return task.state_ == MaskTask::State::kReady;
}

// Returns the cheapest task of the cheapest client in the lane; where several are equal, it is the first. The
// caller holds the lock.
std::shared_ptr<MaskTask> MaskWorkers::next(bool slow_lane) {
  if (queued_.empty()) used_by_client_.clear();
  auto best = queued_.end();
  std::pair<double, double> least;
  for (auto it = queued_.begin(); it != queued_.end(); ++it) {
    if ((*it)->is_slow() != slow_lane) continue;
    const auto of_client = used_by_client_.find((*it)->client_);
    const std::pair used(of_client == used_by_client_.end() ? 0.0 : of_client->second, (*it)->used_s_);
    if (best != queued_.end() && used >= least) continue;
    best = it;
    least = used;
  }
  if (best == queued_.end()) return nullptr;
  std::shared_ptr<MaskTask> task = std::move(*best);
  queued_.erase(best);
  return task;
}

void MaskWorkers::work(bool slow_lane) {
  const MemoryReserve::Scope reserve;
  if (slow_lane) lower_thread_priority();
  std::unique_lock lock(mutex_);
  while (true) {
    std::shared_ptr<MaskTask> task;
    (slow_lane ? to_slow_ : to_quick_).wait(lock, [&] {
      return stop_ || (task = next(slow_lane)) != nullptr;
    });
    if (stop_) return;
    task->state_ = MaskTask::State::kRunning;
    lock.unlock();
    {
      const MemoryReserve::Pause own;  // the mask is the request's
      task->make(options_);
    }
    lock.lock();
    task->state_ = MaskTask::State::kReady;
    used_by_client_[task->client_] += task->last_s_;
    if (task->is_waited_for_) {
      task->is_waited_for_ = false;
      if (--num_waited_for_ == 0) to_engine_.notify_one();
    }
    const bool wakes = std::exchange(task->wakes_, false);
    lock.unlock();
    task.reset();  // destroys the constraint of a request that has ended
    if (wakes) on_late_();
    lock.lock();
  }
}

}  // namespace hadal
