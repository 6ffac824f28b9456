// Copies a step's inputs to the device: one block of arrays (step_layout.h), which is written in page-locked
// memory and copied at once, and the page tables. Only a few entries of the tables change from one decode
// step to the next, so the block contains these entries. The arrays and tables of decode steps that may run
// as a graph are at addresses that depend only on the padded number of rows. Only the engine thread may use
// it.
#pragma once

#include <cstdint>

#include "engine/cuda/staging_ring.h"
#include "engine/cuda/step_layout.h"
#include "engine/cuda/table_mirror.h"
#include "engine/step_executor.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/mla/mla.h"
#include "kernels/cuda/sampling/sampling.h"
#include "kernels/cuda/speculation/speculation.h"
#include "model/cuda/device_decoder.h"

namespace hadal {

// Holds the arrays of a step on the device; only step.prefill is host memory.
struct StepView {
  DeviceStep step;
  cuda::FeedTokensParams feeds;
  cuda::FeedTokensParams page_updates;  // page table entries to be written before the step
  const cuda::SampleRow* samples = nullptr;
  int num_samples = 0;
  const cuda::SampleRow* constrained = nullptr;
  int num_constrained = 0;
  const int32_t *score_rows = nullptr, *score_ids = nullptr, *score_top = nullptr;
  int num_scores = 0;
  const cuda::PageCopyEntry* copies = nullptr;
  // The same arrays as in `step`; speculation fills in rows of them.
  cuda::ChainRows chain_rows;
};

struct DeviceInputLimits {
  int64_t max_tokens = 0;          // rows of a step
  int64_t max_rows = 0;            // rows of a padded decode step, those of drafts included
  int64_t max_seqs = 0;            // requests of a step
  int64_t pages_per_sequence = 0;  // stride of the page table of padded decode steps
  int64_t max_table_entries = 0;   // page table entries of any other step
  PrefillPaths paths;              // attention paths of prompt tokens
};

class DeviceInputs {
 public:
  explicit DeviceInputs(const DeviceInputLimits& limits);
  static int64_t device_bytes(const DeviceInputLimits& limits);

  // Returns where the arrays of a pure decode step of `rows` rows (including padding) will be.
  StepView decode_view(int64_t rows) const;

  // Copies the step's inputs to the device. With rows > 0 the step is a padded decode step (no prompt tokens,
  // at most `rows` rows), whose sample rows are rows of the batch. Otherwise the step is copied as it is, and
  // its sample rows are logit rows. score_top is the top_num of each entry of step.scores. The view is valid
  // until the next upload; step_idx is that of the StagingRing.
  StepView upload(const StagedStep& step, const std::vector<int32_t>& score_top, int64_t rows, int step_idx,
                  StreamHandle stream);

  // Call when a step has failed, because its page table updates may not have reached the device.
  void forget() { mirror_.forget(); }

 private:
  StepView view(const StepLayout& layout, const StepSizes& sizes) const;
  void write(const StagedStep& step, const std::vector<int32_t>& score_top, bool padded,
             const StepSizes& sizes, const StepLayout& layout, std::byte* block) const;
  void write_page_updates(const StepLayout& layout, std::byte* block) const;

  const DeviceInputLimits limits_;
  DeviceBuffer block_;
  DeviceBuffer table_;        // for padded decode steps, pages_per_sequence apart
  DeviceBuffer dense_table_;  // for other steps
  TableMirror mirror_;        // mirrors table_
  StagingRing staging_;
  PrefillPlan plan_;  // plan of the latest step
};

}  // namespace hadal
