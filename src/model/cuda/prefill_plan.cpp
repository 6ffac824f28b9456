#include "model/cuda/prefill_plan.h"

#include <algorithm>

#include "base/check.h"

namespace hadal {
namespace {

// Opens a pass at the end of the plan's arrays.
PrefillPass& open_pass(PrefillPlan& plan, bool accumulate) {
  PrefillPass& pass = plan.passes.emplace_back();
  pass.first_key_run = static_cast<int32_t>(plan.key_runs.size());
  pass.first_segment_run = static_cast<int32_t>(plan.segment_runs.size());
  pass.accumulate = accumulate;
  return pass;
}

// Keys [begin, end) of a segment's sequence, and the queries that see any of them, into the pass.
void add_keys(const PrefillSegment& segment, int32_t begin, int32_t end, PrefillPass& pass,
              PrefillPlan& plan) {
  const auto row = static_cast<int32_t>(pass.num_keys);
  plan.key_runs.push_back(
      {.seq_idx = segment.seq_idx, .begin = begin, .count = end - begin, .out_begin = row});
  const int32_t first_position = segment.kv_len - segment.q_len;
  const int32_t blind = std::max(0, begin - first_position);  // queries before the first of these keys
  plan.segment_runs.push_back({.q_begin = segment.q_begin + blind,
                               .q_len = segment.q_len - blind,
                               .q_pos = first_position + blind,
                               .k_begin = row,
                               .k_len = end - begin,
                               .k_pos = begin});
  ++pass.num_key_runs;
  ++pass.num_segment_runs;
  pass.num_keys += end - begin;
  pass.max_count = std::max<int64_t>(pass.max_count, end - begin);
}

}  // namespace

void PrefillPlan::clear() {
  key_runs.clear();
  segment_runs.clear();
  passes.clear();
}

void plan_prefill(std::span<const PrefillSegment> segments, int64_t max_keys, PrefillPlan& plan) {
  HADAL_CHECK(max_keys >= kPageSize, "max_keys {}: at least {}", max_keys, kPageSize);
  plan.clear();

  // Segments that fit: longest first, each into the first pass with room for it. The passes are filled one
  // after the other, for their runs lie together in the arrays.
  std::vector<int32_t> waiting;
  for (size_t i = 0; i < segments.size(); ++i) {
    const PrefillSegment& segment = segments[i];
    HADAL_CHECK(segment.q_len >= 0 && segment.q_len <= segment.kv_len, "segment {}: {} new tokens of {}", i,
                segment.q_len, segment.kv_len);
    if (segment.q_len > 0 && segment.kv_len <= max_keys) waiting.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(waiting.begin(), waiting.end(),
                   [&](int32_t a, int32_t b) { return segments[a].kv_len > segments[b].kv_len; });
  while (!waiting.empty()) {
    PrefillPass& pass = open_pass(plan, false);
    std::erase_if(waiting, [&](int32_t i) {
      if (pass.num_keys + segments[i].kv_len > max_keys) return false;
      add_keys(segments[i], 0, segments[i].kv_len, pass, plan);
      return true;
    });
  }

  // Longer ones: as few pieces as will do, of about the same size.
  const int64_t largest = max_keys / kPageSize * kPageSize;
  for (const PrefillSegment& segment : segments) {
    if (segment.q_len == 0 || segment.kv_len <= max_keys) continue;
    const int64_t num_pieces = (segment.kv_len + largest - 1) / largest;
    const int64_t even = (segment.kv_len + num_pieces - 1) / num_pieces;
    const int64_t piece = (even + kPageSize - 1) / kPageSize * kPageSize;
    for (int64_t begin = 0; begin < segment.kv_len; begin += piece) {
      const int64_t end = std::min<int64_t>(begin + piece, segment.kv_len);
      add_keys(segment, static_cast<int32_t>(begin), static_cast<int32_t>(end), open_pass(plan, begin > 0),
               plan);
    }
  }
}

}  // namespace hadal
