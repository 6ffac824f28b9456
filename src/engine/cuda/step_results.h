// Copies the results of a step to the host: sampled tokens, log-probabilities, prompt scores, distinct
// experts. The device writes into one set of arrays, in the order of the stream; these are then copied into
// page-locked memory of the step, so that the next step may write again. Only the engine thread may use it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/cuda/staging_ring.h"
#include "engine/step_executor.h"
#include "kernels/cuda/sampling/sampling.h"

namespace hadal {

class StepResults {
 public:
  // Makes room for up to max_rows rows sampled with the step, and as many that wait for masks, and for
  // max_scores prompt scores.
  StepResults(int64_t num_moe_layers, int64_t max_rows, int64_t max_scores);
  static int64_t device_bytes(int64_t num_moe_layers, int64_t max_rows, int64_t max_scores);

  int32_t* distinct_experts() const { return block_.as<int32_t>(); }
  // Sets where rows sampled with the step are written, or (constrained) the rows after them.
  void bind(cuda::SampleParams& params, bool constrained) const;
  // Sets where prompt scores are written.
  void bind_scores(cuda::ScoreParams& params) const;

  // Starts the copies of results [0, count) of one kind; `tops` includes the best alternatives.
  void fetch(int step_idx, bool constrained, int64_t count, bool tops, StreamHandle stream);
  void fetch_scores(int step_idx, int64_t count, bool tops, StreamHandle stream);

  // Call these when the copies are complete.
  std::vector<int32_t> distinct_experts(int step_idx) const;
  const cuda::SampleResult& result(int step_idx, bool constrained, int64_t idx) const;
  TokenLogprob logprob(int step_idx, bool constrained, int64_t idx) const;
  TokenLogprob score(int step_idx, int64_t idx) const;  // logprob is NaN if the logits contain NaN

 private:
  struct Offsets {  // in bytes, for a block with room for some number of rows
    size_t results = 0, top_ids = 0, top_logprobs = 0, bytes = 0;
  };
  static Offsets offsets(int64_t num_moe_layers, int64_t num_rows);

  const int64_t num_moe_layers_;
  const int64_t max_rows_;
  const int64_t max_scores_;
  const Offsets at_;         // for 2 · max_rows rows
  const Offsets at_scores_;  // for max_scores rows
  DeviceBuffer block_;
  StagingRing host_;
  DeviceBuffer scores_;
  StagingRing host_scores_;
};

}  // namespace hadal
