// Guesses and follows drafts on the CPU: the part of a step before the target's forward pass, and the part
// after sampling. Only the executor's worker thread uses it. docs/speculation.md has the order of a step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "engine/model_runner.h"
#include "engine/sampler.h"
#include "engine/speculation/draft_tree_builder.h"
#include "engine/step_executor.h"

namespace hadal {

// CpuSlot holds what the CPU's executor keeps for a slot.
struct CpuSlot {
  SlotStart start;
  int32_t last_token = 0;

  // The other fields are used only with speculation.
  int64_t length = 0;  // tokens of the request; 0: it has sampled nothing, or its last step failed
  std::vector<DraftChoice> first_drafts;  // NextN's guesses of the token after these, best first
  std::vector<float> hidden;              // [hidden]: NextN's hidden state from which they came
  std::vector<DraftNode> drafts;          // [num_rows − 1]: the tree that the step verifies
  // NextN has not written the records of this many tokens before the newest one, because no step has needed
  // drafts since. Their inputs are kept at position % kMaxWaitingRows; the inputs of older tokens are lost.
  int64_t num_waiting = 0;            // at most kMaxWaitingRows
  std::vector<float> waiting_hidden;  // [kMaxWaitingRows, hidden], or empty: the target's
  std::vector<int32_t> waiting_next;  // [kMaxWaitingRows], or empty: the token at the next position
};

class CpuSpeculation {
 public:
  // Runner and pool must outlive it. The runner must have the NextN layer.
  CpuSpeculation(HostRunner& runner, ThreadPool& pool, const DraftShape& shape);

  // Guesses the drafts of the step's VerifyItems, adds their rows to the batch, and fills in their samples. A
  // tree may have fewer nodes than the item allows.
  void expand(StagedStep& step, std::vector<CpuSlot>& slots);

  // Moves the records of accepted drafts from the places of their nodes to their own positions.
  void commit(const StagedStep& step, const StepOutput& output);

  // Runs NextN over the step's rows with the target's hidden states [rows, hidden]. Of a VerifyItem's rows it
  // uses only the accepted ones, so the records of drafts never stay. `output` has the sampled tokens. Each
  // request that speculates gets its next draft. A request that has verified no draft is left out until a
  // step wants drafts of it again.
  void follow(const StagedStep& step, std::span<const float> hidden, StepOutput& output,
              std::vector<CpuSlot>& slots);

 private:
  // Guess says which drafts a row of NextN's batch gives.
  struct Guess {
    CpuSlot* slot = nullptr;
    int64_t position = 0;  // of the drafts
    std::vector<DraftChoice> drafts;
    std::span<const float> hidden;  // [hidden]: of the row, valid until NextN's next batch
  };
  // Growth is the tree of a VerifyItem while it grows.
  struct Growth {
    DraftTreeBuilder tree;
    std::vector<float> hidden;      // [drafts, hidden]: NextN's hidden states, by DraftTreeBuilder's records
    std::vector<int32_t> expanded;  // drafts whose children are guessed
  };

  // Makes the records that wait, and the first drafts, for requests that verify drafts in this step.
  void catch_up(const StagedStep& step, std::vector<CpuSlot>& slots);
  // Keeps the inputs of the record of the token before the newest one.
  void keep(CpuSlot& slot, int32_t next, std::span<const float> hidden) const;
  // Begins a batch of NextN for sequences of `step`.
  void begin_batch(const StagedStep& step);
  // Grows the trees of all items, one depth at a time.
  void grow_trees(const StagedStep& step, std::vector<CpuSlot>& slots);
  // Adds a row on the absorbed path whose record is at its own position: `token` is the one at position + 1.
  void add_row(int32_t seq_idx, int64_t position, int32_t token, std::span<const float> hidden);
  // Requests the drafts that the newest row gives.
  void add_guess(CpuSlot& slot, int64_t position);
  // Runs the batch and fills in guesses_.
  void run_batch();
  // Runs the batch, whose guesses are of the slots' next tokens.
  void guess_first_drafts();

  HostRunner& runner_;
  ThreadPool& pool_;
  const DraftShape shape_;
  const int64_t hidden_size_;
  std::vector<SamplerScratch> scratch_;  // one per thread of the pool

  ForwardBatch batch_;  // of NextN
  std::vector<float> hidden_;
  std::vector<Guess> guesses_;
  std::vector<Growth> growths_;  // of the step's VerifyItems, in their order
  std::vector<RecordMove> moves_;
};

}  // namespace hadal
