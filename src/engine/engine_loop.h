// The engine thread: its state, and one turn of its loop: inbox → plan → stage → launch → collect → masks →
// deliver. The plain and the overlapped loop are the same phases in another order; see
// docs/engine-contract.md. Everything here runs on the engine thread, except where noted.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/chunk_delivery.h"
#include "engine/engine.h"
#include "engine/gate.h"
#include "engine/inbox.h"
#include "engine/sequence.h"
#include "engine/staging.h"
#include "engine/step_executor.h"
#include "engine/step_log.h"
#include "engine/step_trace.h"
#include "engine/watchdog.h"
#include "scheduler/plan_record.h"
#include "scheduler/scheduler.h"

namespace hadal {

class EngineLoop {
 public:
  // `options` are resolved and checked. `inbox` and `gate` must outlive the loop.
  EngineLoop(std::unique_ptr<StepExecutor> executor, int64_t vocab_size, const EngineOptions& options,
             std::unique_ptr<PlanRecorder> recorder, Inbox& inbox, Gate& gate);

  // The engine thread's body: runs until the inbox is stopped, then aborts what is left.
  void run();

  // These are called through the inbox.
  int64_t abort_all(AbortReason reason, const std::string& why);  // returns how many
  Result<void> flush_cache();
  void set_paused(bool paused) { paused_ = paused; }
  Result<void> start_profile(int64_t num_steps);
  Result<StepTrace> stop_profile();  // the caller renders it on its own thread
  void check_integrity() const { scheduler_.check_integrity(); }

  // Any thread.
  EngineStats stats() const;

 private:
  using Clock = Sequence::Clock;

  // Handles one command of the inbox.
  void handle(Command& command);
  void add(std::unique_ptr<Sequence> sequence);
  void abort(RequestId id);

  // Phases of a turn. turn() returns false when there was nothing to do.
  bool turn();
  std::optional<StepRecord> plan_and_launch();
  void set_masks(const StepRecord& record);
  void collect(StepRecord& record);
  void deliver();
  void deliver_last();

  // Parts of collect (engine_collect.cpp, as collect itself).
  void take_scores(const StepRecord& record, StepOutput& output);
  ItemOutcome take_token(Sequence& sequence, SampledToken& sampled, Clock::time_point now);
  void fail_step(const StepRecord& record, const std::string& error);

  // Ends the request on the engine's side; the caller informs the scheduler.
  void finish(Sequence& sequence, FinishReason reason, std::string matched = {});
  void finish_aborted(Sequence& sequence, AbortReason reason, std::string why);
  // A fault of one request: it is removed from the scheduler and ends.
  void fail(Sequence& sequence, const std::string& why);
  // A broken invariant of the engine itself: all requests fail, and no more are accepted.
  void die(const std::string& why);

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
  std::unique_ptr<PlanRecorder> recorder_;  // outlives the scheduler
  Scheduler scheduler_;
  SequenceTable sequences_;  // entries stay until the final chunk has been delivered
  Staging staging_;
  ChunkDelivery delivery_;
  StepLog log_;
  StepTrace trace_;

  // launched, not collected; set between turns of the overlapped loop only
  std::optional<StepRecord> in_flight_;
  bool paused_ = false;
  bool dead_ = false;
  std::string died_of_;
  int64_t num_live_ = 0;  // sequences that are not finished

  std::vector<Command> commands_;                  // scratch of run
  std::vector<ItemOutcome> outcomes_;              // scratch of collect
  std::vector<RequestId> watched_ids_;             // scratch for the watchdog
  std::vector<Sequence*> finished_;                // those that finished in this turn
  std::vector<std::unique_ptr<Sequence>> buried_;  // retired, but a step in flight may still refer to them

  EngineStats counters_;
  mutable std::mutex stats_mutex_;
  EngineStats stats_;               // the published copy
  Clock::time_point idle_since_{};  // guarded by stats_mutex_; zero while busy
  Watchdog watchdog_;               // last, so that its thread ends first
};

}  // namespace hadal
