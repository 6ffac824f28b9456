// What a step computed, on its way to the host: sampled tokens, log-probabilities, prompt scores, distinct
// experts. The device writes into one set of arrays, in the order of the stream; copies into page-locked
// memory of the step's own follow, so that the next step may write again. Engine thread only.
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
  // Up to max_rows rows sampled with the step, and as many that wait for masks.
  StepResults(int64_t num_moe_layers, int64_t max_rows);
  static int64_t device_bytes(int64_t num_moe_layers, int64_t max_rows);

  int32_t* distinct_experts() const { return block_.as<int32_t>(); }
  // Where rows sampled with the step write, or (constrained) those after them.
  void bind(cuda::SampleParams& params, bool constrained) const;
  // Room for so many prompt scores; where they go.
  void bind_scores(cuda::ScoreParams& params);

  // Copies of results [0, count) of one kind; `tops`: with the best alternatives.
  void fetch(int step_idx, bool constrained, int64_t count, bool tops, StreamHandle stream);
  void fetch_scores(int step_idx, int64_t count, bool tops, StreamHandle stream);

  // Once the copies are over.
  std::vector<int32_t> distinct_experts(int step_idx) const;
  const cuda::SampleResult& result(int step_idx, bool constrained, int64_t idx) const;
  TokenLogprob logprob(int step_idx, bool constrained, int64_t idx) const;
  TokenLogprob score(int step_idx, int64_t idx) const;  // logprob NaN where the logits hold one

 private:
  struct Offsets {  // bytes, of the block with room for some number of rows
    size_t results = 0, top_ids = 0, top_logprobs = 0, bytes = 0;
  };
  static Offsets offsets(int64_t num_moe_layers, int64_t num_rows);

  const int64_t num_moe_layers_;
  const int64_t max_rows_;
  const Offsets at_;  // of 2 · max_rows rows
  DeviceBuffer block_;
  StagingRing host_;
  DeviceBuffer scores_;  // grows
  int64_t max_scores_ = 0;
  StagingRing host_scores_;
  std::vector<int64_t> host_max_scores_;  // max_scores_ when the step's scores were fetched
};

}  // namespace hadal
