// EngineLoop is the state of the engine thread and one turn of its loop: inbox → plan → stage → launch →
// collect → masks → deliver. The plain and the overlapped loop are the same phases in another order; see
// docs/engine-contract.md. Everything here runs on the engine thread, except where noted.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/loop/chunk_delivery.h"
#include "engine/loop/gate.h"
#include "engine/loop/inbox.h"
#include "engine/loop/mask_workers.h"
#include "engine/loop/sequence.h"
#include "engine/loop/staging.h"
#include "engine/loop/step_log.h"
#include "engine/loop/step_pace.h"
#include "engine/loop/step_trace.h"
#include "engine/loop/watchdog.h"
#include "engine/speculation/speculation_policy.h"
#include "engine/step_executor.h"
#include "scheduler/plan_record.h"
#include "scheduler/scheduler.h"

namespace hadal {

// This is the text of an AbortReason::kMemory.
inline constexpr const char* kNoMemory = "the server has no memory left; try again later";

class EngineLoop {
 public:
  // `options` are resolved and checked. `inbox` and `gate` must outlive the loop.
  EngineLoop(std::unique_ptr<StepExecutor> executor, const ModelConfig& config, const EngineOptions& options,
             std::unique_ptr<PlanRecorder> recorder, Inbox& inbox, Gate& gate);

  // This is the engine thread's body: it runs until the inbox is stopped, then aborts what is left.
  void run();

  // These are called through the inbox.
  int64_t abort_all(AbortReason reason, const std::string& why);  // returns how many
  Result<void> flush_cache();
  void set_paused(bool paused) { paused_ = paused; }
  Result<void> start_profile(int64_t num_steps);
  Result<StepTrace> stop_profile();  // the caller renders it on its own thread
  void check_integrity() const { scheduler_.check_integrity(); }

  // Any thread may call it.
  EngineStats stats() const;

 private:
  using Clock = Sequence::Clock;

  // Handles commands of the inbox, but at most kAbortsPerTurn aborts unless the inbox was stopped. Returns
  // false once it was stopped.
  bool take_commands();
  void handle(Command& command);
  void add(std::unique_ptr<Sequence>& sequence);  // takes it unless it throws
  void abort(RequestId id);

  // These are the phases of a turn. turn() returns false when there was nothing to do.
  bool turn();
  std::optional<StepRecord> plan_and_launch();
  SpeculationPolicy::Choice choose_width() const;
  // These are parts of masks (engine_masks.cpp).
  void set_masks(const StepRecord& record);
  void wait_for_masks();
  void defer_late(Sequence& sequence, const StepRecord& record);
  void await_mask(Sequence& sequence);
  void release_ready();
  void collect(StepRecord& record);
  void deliver();
  void deliver_last();

  // These are parts of collect, in engine_collect.cpp too.
  void take_scores(const StepRecord& record, StepOutput& output);
  ItemOutcome take_tokens(Sequence& sequence, SampledToken& sampled, Clock::time_point now);
  // Appends the token that row `row` of the request's item sampled. The request may end with it.
  void take_token(Sequence& sequence, size_t row, int32_t token, std::optional<TokenLogprob>& logprob,
                  Clock::time_point now);
  void fail_step(const StepRecord& record, const std::string& error);

  // Ends the request on the engine's side; the caller informs the scheduler.
  void finish(Sequence& sequence, FinishReason reason, std::string abort_text = {});
  void finish_aborted(Sequence& sequence, AbortReason reason, std::string why);
  // Handles a fault of one request, which is removed from the scheduler and ends.
  void fail(Sequence& sequence, const std::string& why, AbortReason reason = AbortReason::kFault);
  // These and deliver_last are in engine_failures.cpp.

  // Handles a broken invariant of the engine itself: all requests fail, and no more are accepted. It works
  // without memory: then it writes its last line without allocating, and some requests may receive no final
  // chunk.
  void die(const char* why) noexcept;
  // Called when an allocation has failed for state that no single request owns, and the reserve
  // (base/memory_reserve.h) was used up. The unfinished work cannot be undone, so all requests end, and the
  // scheduler begins anew with an empty cache. If even that fails, it calls die().
  void begin_anew() noexcept;
  void end_everything();
  void end_record();
  void discard_steps();

  void forget_oldest();  // drops the first of launched_

  void retire_finished();
  void bury(int64_t collected_step);
  void publish_stats();
  void rest();
  void enter(const char* phase) { watchdog_.enter(phase); }

  const EngineOptions options_;
  const int64_t vocab_size_;
  Inbox& inbox_;
  Gate& gate_;
  std::unique_ptr<StepExecutor> executor_;
  std::unique_ptr<PlanRecorder> recorder_;  // outlives the scheduler's use of it
  Scheduler scheduler_;
  SequenceTable sequences_;  // entries stay until the final chunk has been delivered
  Staging staging_;
  ChunkDelivery delivery_;
  StepLog log_;
  StepTrace trace_;

  // A step that is launched and not collected. Between turns, only the overlapped loop has one.
  std::optional<StepRecord> in_flight_;
  // Steps that the executor has been given and has not returned, the oldest first.
  struct Launched {
    int64_t step = 0;
    size_t num_constrained = 0;
    bool has_masks = false;
  };
  std::array<Launched, 2> launched_{};
  int num_launched_ = 0;
  bool paused_ = false;
  bool dead_ = false;
  std::string died_of_;
  int64_t num_live_ = 0;  // sequences that are not finished

  std::vector<Sequence*> awaiting_masks_;  // those with awaits_mask
  StepPace pace_;
  std::optional<SpeculationPolicy> policy_;  // none: steps have the width of the options
  int64_t num_prompt_tokens_ = 0;            // of the latest plan

  // A batch of the inbox. Aborts are handled from next_abort_ on, and other commands from next_command_ on.
  std::vector<Command> commands_;
  size_t next_command_ = 0;
  size_t next_abort_ = 0;
  std::vector<ItemOutcome> outcomes_;              // scratch of collect
  std::vector<int32_t> accepted_rows_;             // scratch of take_tokens
  std::vector<RequestId> watched_ids_;             // scratch for the watchdog
  std::vector<MaskTask*> awaited_;                 // scratch of set_masks
  std::vector<Sequence*> finished_;                // those that finished in this turn
  std::vector<std::unique_ptr<Sequence>> buried_;  // retired, but a step in flight may still refer to them

  EngineStats counters_;
  mutable std::mutex stats_mutex_;
  EngineStats stats_;               // the published copy
  Clock::time_point idle_since_{};  // guarded by stats_mutex_; zero while busy
  Watchdog watchdog_;
  MaskWorkers mask_workers_;  // last, so that its threads end first
};

}  // namespace hadal
