#include "engine/loop/mask_workers.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/memory_reserve.h"
#include "base/thread_priority.h"

namespace hadal {

void MaskTask::make(const MaskWorkersOptions& options) {
  if (!error_.empty()) return;  // a constraint that has failed is not called again
  const double begin = options.clock();
  try {
    if (is_for_drafts_) {
      make_draft_masks();
    } else {
      make_next();
    }
  } catch (const BadRequest& error) {
    set_error(error.what(), AbortReason::kRequest);
  } catch (const std::bad_alloc&) {
    set_error("no memory for the grammar's mask", AbortReason::kMemory);
  } catch (const std::exception& error) {
    set_error(error.what(), AbortReason::kFault);
  }
  const int64_t num_made = is_for_drafts_ ? num_draft_masks_ : 1;
  const double took_s = options.clock() - begin;
  last_s_ = took_s / static_cast<double>(std::max<int64_t>(num_made, 1));
  used_s_ += took_s;
  num_masks_ += num_made;
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

// Drafts that were also sampled are not told to the constraint again.
void MaskTask::make_next() {
  const auto differs =
      std::mismatch(told_drafts_.begin(), told_drafts_.end(), tokens_.begin(), tokens_.end());
  if (const auto num_wrong = told_drafts_.end() - differs.first; num_wrong > 0)
    constraint_->rollback(num_wrong);
  told_drafts_.clear();
  for (auto token = differs.second; token != tokens_.end(); ++token) {
    HADAL_CHECK(constraint_->accept_token(*token), "the grammar refuses token {}, which it allowed before",
                *token);
  }
  mask_.assign(num_words_, 0);
  constraint_->fill_mask(mask_);
}

void MaskTask::make_draft_masks() {
  draft_masks_.assign(drafts_.size() * num_words_, 0);
  num_draft_masks_ = 0;
  make_masks_from(0, 0);
}

// Drafts after one that is not allowed are never sampled.
void MaskTask::make_masks_from(int32_t node, size_t depth) {
  for (size_t i = static_cast<size_t>(node); i < drafts_.size(); ++i) {
    const int32_t token = drafts_[i].token;
    if (drafts_[i].parent != node || !allows(static_cast<size_t>(node), token)) continue;
    if (const size_t num_others = told_drafts_.size() - depth; num_others > 0) {
      constraint_->rollback(static_cast<int64_t>(num_others));
      told_drafts_.resize(depth);
    }
    HADAL_CHECK(constraint_->accept_token(token), "the grammar refuses draft {}, which it allowed before",
                token);
    told_drafts_.push_back(token);
    constraint_->fill_mask(std::span(draft_masks_).subspan(i * num_words_, num_words_));
    ++num_draft_masks_;
    make_masks_from(static_cast<int32_t>(i) + 1, depth + 1);
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
    // One thread more than a client may occupy.
    start_threads(options_.num_quick > 0 ? options_.num_quick : std::clamp(num_cores / 4, 1, 4) + 1, false);
    start_threads(options_.num_slow > 0 ? options_.num_slow : std::clamp(num_cores / 8, 1, 2) + 1, true);
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
    quick_.queue.clear();
    slow_.queue.clear();
  }
  for (size_t i = 0; i < threads_.size(); ++i) {
    quick_.to_workers.post();
    slow_.to_workers.post();
  }
  for (std::thread& thread : threads_) thread.join();
}

void MaskWorkers::start_threads(int count, bool slow_lane) {
  threads_.reserve(threads_.size() + static_cast<size_t>(count));
  int num_started = 0;
  for (; num_started < count; ++num_started) {
    try {
      threads_.emplace_back([this, slow_lane] { work(slow_lane); });
    } catch (const std::system_error&) {  // the system has no more threads; one in each lane is enough
      if (num_started > 0) break;
      throw;
    }
  }
  const std::lock_guard lock(mutex_);
  lane(slow_lane).queue.set_client_limit(std::max(num_started - 1, 1));
}

void MaskWorkers::post(const std::shared_ptr<MaskTask>& task, std::vector<int32_t> tokens) {
  const std::lock_guard lock(mutex_);
  if (task->is_given_up_) {  // a worker still runs the task
    task->tokens_after_ = std::move(tokens);
    task->is_awaitable_ = false;
    return;
  }
  HADAL_CHECK(task->state_ == MaskTask::State::kIdle, "a mask is begun before the one ahead of it is used");
  task->tokens_ = std::move(tokens);
  enqueue(task, /*for_drafts=*/false);
}

void MaskWorkers::post_drafts(const std::shared_ptr<MaskTask>& task, std::vector<DraftNode> drafts) {
  const std::lock_guard lock(mutex_);
  HADAL_CHECK(task->state_ == MaskTask::State::kIdle && task->told_drafts_.empty(),
              "drafts follow a mask that is not taken");
  task->drafts_ = std::move(drafts);
  enqueue(task, /*for_drafts=*/true);
}

void MaskWorkers::enqueue(const std::shared_ptr<MaskTask>& task, bool for_drafts) {
  const bool is_slow = task->is_slow();
  task->place_ = lane(is_slow).queue.push(task, task->client_, task->used_s_);
  task->state_ = MaskTask::State::kQueued;
  task->is_for_drafts_ = for_drafts;
  task->is_awaitable_ = task->num_masks_ == 0 || !is_slow;
  lane(is_slow).to_workers.post();
}

void MaskWorkers::drop(const std::shared_ptr<MaskTask>& task) {
  const std::lock_guard lock(mutex_);
  if (task->state_ == MaskTask::State::kQueued) lane(task->is_slow()).queue.erase(task->place_);
  task->tokens_after_.reset();
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

void MaskWorkers::take_drafts(const std::shared_ptr<MaskTask>& task, std::span<uint32_t> words) {
  const std::lock_guard lock(mutex_);
  switch (task->state_) {
    case MaskTask::State::kQueued:
      lane(task->is_slow()).queue.erase(task->place_);
      break;
    case MaskTask::State::kRunning:
      task->is_given_up_ = true;
      return;
    default:
      if (!task->error_.empty()) break;  // the next mask reports it
      HADAL_CHECK_EQ(task->draft_masks_.size(), words.size());
      std::copy(task->draft_masks_.begin(), task->draft_masks_.end(), words.begin());
  }
  task->state_ = MaskTask::State::kIdle;
}

bool MaskWorkers::is_ready(const MaskTask& task) {
  const std::lock_guard lock(mutex_);
  return task.state_ == MaskTask::State::kReady;
}

void MaskWorkers::work(bool slow_lane) {
  const MemoryReserve::Scope reserve;
  if (slow_lane) lower_thread_priority();
  Lane& its_lane = lane(slow_lane);
  std::unique_lock lock(mutex_);
  while (true) {
    if (stop_) return;
    std::shared_ptr<MaskTask> task = its_lane.queue.pop();
    if (task == nullptr) {
      lock.unlock();
      its_lane.to_workers.wait();
      lock.lock();
      continue;
    }
    task->state_ = MaskTask::State::kRunning;
    const double used_before_s = task->used_s_;
    lock.unlock();
    {
      const MemoryReserve::Pause own;  // what make() allocates belongs to the request
      task->make(options_);
    }
    lock.lock();
    const bool is_given_up = std::exchange(task->is_given_up_, false);
    task->state_ = is_given_up ? MaskTask::State::kIdle : MaskTask::State::kReady;
    its_lane.queue.finish(task->client_, task->used_s_ - used_before_s);
    if (auto tokens = std::exchange(task->tokens_after_, std::nullopt)) {
      task->tokens_ = std::move(*tokens);
      enqueue(task, /*for_drafts=*/false);
    } else if (task->is_waited_for_) {
      task->is_waited_for_ = false;
      if (--num_waited_for_ == 0) to_engine_.notify_one();
    }
    const bool wakes = !is_given_up && std::exchange(task->wakes_, false);
    lock.unlock();
    task.reset();  // destroys the constraint of a request that has ended
    if (wakes) on_late_();
    lock.lock();
  }
}

}  // namespace hadal
