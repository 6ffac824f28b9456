// Turns a plan into the arrays of a step: page tables per slot, rows, wanted logits and sampling rows. Only
// the engine thread uses it.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/loop/sequence.h"
#include "engine/step_executor.h"
#include "scheduler/batch_plan.h"

namespace hadal {

// StepRecord is a step in flight: its plan, and the owner of each result. A sequence stays until the step has
// ended (Sequence::last_step), even if its request ends before.
struct StepRecord {
  BatchPlan plan;
  std::vector<Sequence*> samples;        // as StagedStep::samples
  std::vector<Sequence*> constrained;    // those of `samples` that wait for a mask
  std::vector<Sequence*> scores;         // as StagedStep::scores
  std::vector<Sequence*> ended_prompts;  // prompts that end in this step, with no sample after them
  std::vector<Sequence*> admitted;       // sequences that run for the first time
  Sequence::Clock::time_point launched;
};

class Staging {
 public:
  // With `speculates` it fills in StagedStep::next_ids.
  Staging(const SequenceTable& sequences, int64_t max_running_requests, bool speculates = false);

  // Fills in `record` from record.plan and returns the executor's input. The executor fills in tokens that
  // the previous step samples (StagedStep::feeds).
  StagedStep stage(StepRecord& record);
  // Forgets the page tables, because all requests have ended.
  void clear() noexcept;

 private:
  struct Slot {
    Sequence* sequence = nullptr;
    std::vector<PageId> pages;  // in order of position
  };

  Slot& start_item(const RankPlan& plan, const WorkItem& item, StagedStep& staged, StepRecord& record);
  void add_prompt(const Slot& slot, const WorkItem& item, StagedStep& staged, StepRecord& record);
  void add_decode(const Slot& slot, const WorkItem& item, StagedStep& staged);
  void add_verify(const Slot& slot, const WorkItem& item, StagedStep& staged, StepRecord& record);
  void add_sample(const Slot& slot, const WorkItem& item, StagedStep& staged, StepRecord& record);

  const SequenceTable& sequences_;
  const bool speculates_;
  std::vector<Slot> slots_;
};

}  // namespace hadal
