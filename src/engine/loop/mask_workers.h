// Makes the masks of constrained rows while the engine thread does other work. A mask may take long, because
// an ambiguous grammar has thousands of parser states. So each request has a task that one worker at a time
// carries out: it tells the constraint the newest tokens, and then fills the mask of the next one.
//
// With speculation a task is carried out a second time in a step: the worker follows the tree of drafts as
// far as the masks allow them, one path after another, and fills the mask of each. Drafts that were not
// sampled are rolled back before the next mask.
//
// A task is slow if its last mask took long, or if it has not made one yet. Only the threads of the slow
// lane, which run at a lower priority of the operating system, carry out slow tasks. So an expensive grammar
// delays neither cheap ones nor the forward pass. Each lane has a queue in which clients take turns
// (engine/loop/mask_queue.h). One client never occupies all threads of a lane, so the first mask of another
// client, and a mask that is slow although the one before it was not, delay only masks of their own client.
//
// A request whose constraint has used more processor time than MaskLimits::all_masks_s allows ends with an
// error.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/mask_limits.h"
#include "base/semaphore.h"
#include "base/thread_seconds.h"
#include "engine/engine.h"
#include "engine/loop/mask_queue.h"
#include "kernels/params/draft_tree.h"

namespace hadal {

inline constexpr double kSlowMaskSeconds = 0.005;  // a mask that takes longer makes its task a slow one

struct MaskWorkersOptions {
  MaskLimits limits;
  // Threads of each lane; 0: chosen by the number of processors. One quick thread makes some thousand masks
  // per second. More threads are for large batches on large machines. Where a lane has only one, clients take
  // turns with it.
  int num_quick = 0;
  int num_slow = 0;
  std::function<double()> clock = thread_seconds;  // another one in tests
};

// MaskTask is the constraint of one request and its newest mask. Only MaskWorkers calls the functions other
// than allows().
class MaskTask {
 public:
  // `client` is the client of the request.
  MaskTask(std::unique_ptr<TokenConstraint> constraint, int64_t vocab_size, uint64_t client)
      : constraint_(std::move(constraint)),
        num_words_(static_cast<size_t>((vocab_size + 31) / 32)),
        client_(client) {}

  // Tells whether the step's mask `row` allows the token: 0 is the newest mask, and i that of draft i, which
  // must have been taken. The engine thread calls it.
  bool allows(size_t row, int32_t token_id) const {
    const uint32_t* const mask = row == 0 ? mask_.data() : &draft_masks_[(row - 1) * num_words_];
    return (mask[token_id / 32] >> (token_id % 32) & 1U) != 0;
  }

 private:
  friend class MaskWorkers;
  enum class State { kIdle, kQueued, kRunning, kReady };

  bool is_slow() const { return num_masks_ == 0 || last_s_ > kSlowMaskSeconds; }
  // These run on a worker, without the lock.
  void make(const MaskWorkersOptions& options);
  void make_next();
  void make_draft_masks();
  // Makes the mask of a draft and those of the drafts after it. The constraint has been told `depth` drafts
  // that lead to it, and perhaps others after them, which it is told no longer.
  void make_masks_from(int32_t node, size_t depth);
  void set_error(const char* what, AbortReason reason);

  const std::unique_ptr<TokenConstraint> constraint_;
  const size_t num_words_;
  const uint64_t client_;
  // MaskWorkers::mutex_ guards state_, and all fields below while the task does not run.
  State state_ = State::kIdle;
  MaskQueue::Place place_;            // while it waits
  std::vector<int32_t> tokens_;       // tokens that the constraint has not been told yet
  std::vector<DraftNode> drafts_;     // the tree whose masks are made
  bool is_for_drafts_ = false;        // it makes, or has made, masks of drafts
  std::vector<int32_t> told_drafts_;  // drafts that the constraint was told: a path from the root
  std::vector<uint32_t> mask_;
  std::vector<uint32_t> draft_masks_;  // [drafts_.size(), num_words_]: all 0 for drafts that are not allowed
  int64_t num_draft_masks_ = 0;        // how many of them are not
  bool is_given_up_ = false;           // no caller takes the masks of drafts that are being made
  // The tokens of a post() that was called while a worker still ran the task.
  std::optional<std::vector<int32_t>> tokens_after_;
  std::string error_;
  AbortReason error_reason_ = AbortReason::kFault;
  int64_t num_masks_ = 0;
  double used_s_ = 0.0;         // processor time
  double last_s_ = 0.0;         // processor time of one mask, when the task was last carried out
  bool is_awaitable_ = true;    // wait() waits for it: it is a first mask, or its task was not slow
  bool is_waited_for_ = false;  // a call of wait() is waiting for it
  bool wakes_ = false;          // on_late is called when it is ready
};

// Only the engine thread calls the public functions; the workers run the private ones.
class MaskWorkers {
 public:
  using Clock = std::chrono::steady_clock;

  // A worker calls `on_late` when a mask becomes ready that was late or that belongs to a slow task (see
  // take). All threads are started here, so that no request fails later because the system has no threads
  // left. Throws std::system_error if there is not even one thread for each lane.
  explicit MaskWorkers(std::function<void()> on_late, MaskWorkersOptions options = {});
  // Waits for the masks that are being made, and drops the others.
  ~MaskWorkers();
  MaskWorkers(const MaskWorkers&) = delete;
  MaskWorkers& operator=(const MaskWorkers&) = delete;

  // Begins the mask after `tokens`, which were sampled in one step, or the first mask if there are no tokens.
  // The task must be idle, or its masks of drafts must have been given up.
  void post(const std::shared_ptr<MaskTask>& task, std::vector<int32_t> tokens);
  // Begins the masks of `drafts`, a tree that follows the mask that was taken last. The task must be idle.
  void post_drafts(const std::shared_ptr<MaskTask>& task, std::vector<DraftNode> drafts);
  // Forgets a request that has ended: if its mask has not been begun, it is not made.
  void drop(const std::shared_ptr<MaskTask>& task);

  // Waits until the masks of `tasks` are ready, or `deadline` is over. It does not wait for masks of tasks
  // that were slow when the mask was begun, unless it is the task's first mask.
  void wait(std::span<MaskTask* const> tasks, Clock::time_point deadline);

  struct Outcome {
    bool is_ready = false;
    bool is_slow = false;  // the next mask should not be waited for
    std::string error;     // not empty: the constraint failed, so that there is no mask
    AbortReason reason = AbortReason::kFault;
  };
  // Copies a mask that is ready into `words`, after which the task is idle. on_late will be called for the
  // present mask if it is late, and for the next mask if the task is slow.
  Outcome take(MaskTask& task, std::span<uint32_t> words);
  // Copies the masks of drafts into `words`, one after the other. If they are not ready, or one of them has
  // failed, it gives them up and copies nothing.
  void take_drafts(const std::shared_ptr<MaskTask>& task, std::span<uint32_t> words);
  // Tells whether the mask is ready, or has failed.
  bool is_ready(const MaskTask& task);

 private:
  // Puts a task into the queue, whose tokens or drafts are set. The caller holds the lock.
  void enqueue(const std::shared_ptr<MaskTask>& task, bool for_drafts);
  void start_threads(int count, bool slow_lane);
  void stop();
  void work(bool slow_lane);

  struct Lane {
    Semaphore to_workers;  // the engine's thread is more urgent than they are
    MaskQueue queue;
  };
  Lane& lane(bool slow_lane) { return slow_lane ? slow_ : quick_; }

  const MaskWorkersOptions options_;
  const std::function<void()> on_late_;
  std::mutex mutex_;  // guards everything below, and the tasks that are not running
  std::condition_variable to_engine_;
  Lane quick_, slow_;
  int64_t num_waited_for_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace hadal
