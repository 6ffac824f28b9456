// From a plan to the arrays of a step: page tables by slot, rows, logits wanted, who samples. Engine thread
// only.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/sequence.h"
#include "engine/step_executor.h"
#include "scheduler/batch_plan.h"

namespace hadal {

// A step under way: its plan, and who each of its results is for. The sequences stay until the step is over
// (Sequence::last_step), even if their requests end before.
struct StepRecord {
  BatchPlan plan;
  std::vector<Sequence*> samples;        // as StagedStep::samples
  std::vector<Sequence*> constrained;    // those of them that wait for a mask
  std::vector<Sequence*> scores;         // as StagedStep::scores
  std::vector<Sequence*> ended_prompts;  // whose prompt ends in this step with nothing to be sampled after it
  std::vector<Sequence*> admitted;       // which run for the first time
  Sequence::Clock::time_point launched;
};

class Staging {
 public:
  Staging(const SequenceTable& sequences, int64_t max_running_requests);

  // Fills in `record` from record.plan and returns what the executor gets. Tokens that the step before
  // samples are left to it (StagedStep::feeds).
  StagedStep stage(StepRecord& record);

 private:
  struct Slot {
    Sequence* sequence = nullptr;
    std::vector<PageId> pages;  // in order of position
  };

  Slot& start_item(const RankPlan& plan, const WorkItem& item, StagedStep& staged, StepRecord& record);
  void add_prefill(const Slot& slot, const WorkItem& item, StagedStep& staged, StepRecord& record);
  void add_decode(const Slot& slot, const WorkItem& item, StagedStep& staged);
  void add_sample(const Slot& slot, const WorkItem& item, StagedStep& staged, StepRecord& record);

  const SequenceTable& sequences_;
  std::vector<Slot> slots_;
};

}  // namespace hadal
