// A step's inputs on their way to the device: one block of arrays (step_layout.h), written in page-locked
// memory and copied at once, and the page tables. From one decode step to the next only a few entries of
// those change: they travel in the block. Decode steps that a graph may run have their arrays and tables at
// addresses that depend on the padded number of rows alone. Engine thread only.
#pragma once

#include <cstdint>

#include "engine/cuda/staging_ring.h"
#include "engine/cuda/step_layout.h"
#include "engine/cuda/table_mirror.h"
#include "engine/step_executor.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/mla/mla.h"
#include "kernels/cuda/sampling/sampling.h"
#include "model/cuda/device_decoder.h"

namespace hadal {

// Everything points to device memory, except step.prefill.
struct StepView {
  DeviceStep step;
  cuda::FeedTokensParams feeds;
  cuda::FeedTokensParams page_updates;  // entries of the page tables, to be put in place before the step
  const cuda::SampleRow* samples = nullptr;
  int num_samples = 0;
  const cuda::SampleRow* constrained = nullptr;
  int num_constrained = 0;
  const int32_t *score_rows = nullptr, *score_ids = nullptr, *score_top = nullptr;
  int num_scores = 0;
  const cuda::PageCopyEntry* copies = nullptr;
};

struct DeviceInputLimits {
  int64_t max_tokens = 0;          // rows of a step
  int64_t max_rows = 0;            // of a padded decode step
  int64_t max_seqs = 0;            // requests of a step
  int64_t pages_per_sequence = 0;  // stride of the page table of padded decode steps
  int64_t max_table_entries = 0;   // of any other step
  PrefillPaths paths;              // of prompt tokens
};

class DeviceInputs {
 public:
  explicit DeviceInputs(const DeviceInputLimits& limits);
  static int64_t device_bytes(const DeviceInputLimits& limits);

  // A pure decode step of so many rows, padding included: where its arrays will be.
  StepView decode_view(int64_t rows) const;

  // Copies the step's inputs to the device. rows > 0: as a padded decode step (no prompt tokens, at most
  // `rows` rows), whose sample rows name rows of the batch; else as it is, whose sample rows name logit rows.
  // score_top: top_num of each of step.scores. The view holds until the next upload; step_idx: of the
  // StagingRing.
  StepView upload(const StagedStep& step, const std::vector<int32_t>& score_top, int64_t rows, int step_idx,
                  StreamHandle stream);

  // What was uploaded may never have got to the page tables: the step failed.
  void forget() { mirror_.forget(); }

 private:
  StepView view(const StepLayout& layout, const StepSizes& sizes) const;
  void write(const StagedStep& step, const std::vector<int32_t>& score_top, bool padded,
             const StepSizes& sizes, const StepLayout& layout, std::byte* block) const;
  void write_page_updates(const StepLayout& layout, std::byte* block) const;

  const DeviceInputLimits limits_;
  DeviceBuffer block_;
  DeviceBuffer table_;        // of padded decode steps, pages_per_sequence apart
  DeviceBuffer dense_table_;  // of other steps
  TableMirror mirror_;        // of table_
  StagingRing staging_;
  PrefillPlan plan_;  // of the latest step
};

}  // namespace hadal
