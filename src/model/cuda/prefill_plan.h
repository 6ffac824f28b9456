// How a step's prompt segments attend: un-absorbed in passes over bounded numbers of keys, merged by
// log-sum-exp; or, where a few tokens extend a long cached prefix, absorbed, as decode does. A pure function
// of the segments, on the host; its arrays travel to the device with the step.
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

// Groups of tokens that attend absorbed in one go: [first_group, first_group + num_groups) of the plan's.
struct AbsorbedPass {
  int32_t first_group = 0, num_groups = 0;
};

struct PrefillPlan {
  // Un-absorbed.
  std::vector<cuda::KeyRun> key_runs;
  std::vector<cuda::PrefillSegmentRun> segment_runs;
  std::vector<PrefillPass> passes;
  // Absorbed: a group is group_rows consecutive tokens of a segment, a sequence of mla_decode with so many
  // queries. Where a segment does not come out even, its first group begins with empty rows.
  int group_rows = 1;
  std::vector<int32_t> absorbed_rows;     // [groups · group_rows]: row of q; −1: empty
  std::vector<int32_t> absorbed_seq_idx;  // [groups]
  std::vector<int32_t> absorbed_kv_len;   // [groups]: keys that the group's last token sees
  std::vector<AbsorbedPass> absorbed_passes;
  int64_t absorbed_pairs = 0;  // of queries, empty ones included, and keys
  void clear();
};

// What the choice between the paths goes by beside the segment.
struct PrefillPaths {
  int num_heads = 0;  // 0: all segments attend un-absorbed
  KvLayout layout;
  bool fp8_weights = false;
};

// Rows of an absorbed group: as many as make 128 queries with all heads, 1 to 8.
constexpr int absorbed_group_rows(int num_heads) {
  int rows = 1;
  while (rows < 8 && rows * 2 * num_heads <= 128) rows *= 2;
  return rows;
}

// Whether q_len new tokens behind a cached prefix attend absorbed: fitted to measured times of both paths on
// one H200 (docs/kernels/cuda-mla-prefill.md). Depends on the segment's own lengths, never on its company.
bool prefill_absorbed(int64_t q_len, int64_t kv_len, const PrefillPaths& paths);

// Every segment sees all its keys [0, kv_len). Un-absorbed: with at most max_keys a pass, in as few passes as
// possible: segments whose keys fit share one; a segment with more keys is cut at multiples of 64 positions,
// in ascending order, and has its passes to itself. Either all segments of a pass accumulate or none does.
// Absorbed: with at most kMaxAbsorbedRows rows a pass.
void plan_prefill(std::span<const PrefillSegment> segments, int64_t max_keys, const PrefillPaths& paths,
                  PrefillPlan& plan);

// Rows of an absorbed pass, empty ones included: bounds its queries and outputs ([rows, heads, 576 and 512]).
inline constexpr int64_t kMaxAbsorbedRows = 512;

}  // namespace hadal
