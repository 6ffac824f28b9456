// How a step's prompt segments attend un-absorbed: in passes over bounded numbers of keys, merged by
// log-sum-exp. A pure function of the segments, on the host; its arrays travel to the device with the step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/mla/mla.h"
#include "kernels/params/mla.h"

namespace hadal {

// One pass: keys gathered into a buffer, expanded by kv_b, attended. Ranges into the plan's arrays.
struct PrefillPass {
  int32_t first_key_run = 0, num_key_runs = 0;
  int32_t first_segment_run = 0, num_segment_runs = 0;
  int64_t num_keys = 0;
  int64_t max_count = 0;    // the longest key run
  bool accumulate = false;  // queries of this pass were in an earlier one
};

struct PrefillPlan {
  std::vector<cuda::KeyRun> key_runs;
  std::vector<cuda::PrefillSegmentRun> segment_runs;
  std::vector<PrefillPass> passes;
  void clear();
};

// Every segment sees all its keys [0, kv_len) with at most max_keys a pass. As few passes as possible:
// segments whose keys fit share one; a segment with more keys is cut at multiples of 64 positions, in
// ascending order, and has its passes to itself. Either all segments of a pass accumulate or none does.
void plan_prefill(std::span<const PrefillSegment> segments, int64_t max_keys, PrefillPlan& plan);

}  // namespace hadal
