#include "model/cuda/prefill_plan.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/mla/prefill/fitted.h"

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

// Adds keys [begin, end) of a segment's sequence to the pass, and the queries that see any of these keys.
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

// Adds a segment's tokens as groups for the absorbed path.
void add_groups(const PrefillSegment& segment, PrefillPlan& plan) {
  const int32_t group = plan.group_rows;
  const int32_t empty = (group - segment.q_len % group) % group;
  for (int32_t i = 0; i < empty; ++i) plan.absorbed_rows.push_back(-1);
  for (int32_t i = 0; i < segment.q_len; ++i) plan.absorbed_rows.push_back(segment.q_begin + i);
  for (int32_t end = group - empty; end <= segment.q_len; end += group) {
    plan.absorbed_seq_idx.push_back(segment.seq_idx);
    plan.absorbed_kv_len.push_back(segment.kv_len - segment.q_len + end);
    plan.absorbed_pairs += int64_t{group} * plan.absorbed_kv_len.back();
  }
}

// Returns tokens [begin, end) of a segment.
PrefillSegment part_of(const PrefillSegment& segment, int32_t begin, int32_t end) {
  return {.seq_idx = segment.seq_idx,
          .q_begin = segment.q_begin + begin,
          .q_len = end - begin,
          .kv_len = segment.kv_len - segment.q_len + end};
}

// Adds passes that select keys for all tokens of a segment.
void add_selecting(const PrefillSegment& segment, bool as_bits, PrefillPlan& plan) {
  const auto most = static_cast<int32_t>(kMaxAbsorbedRows);
  for (int32_t begin = 0; begin < segment.q_len; begin += most) {
    const PrefillSegment part = part_of(segment, begin, std::min(begin + most, segment.q_len));
    plan.selecting_passes.push_back({.first_row = part.q_begin,
                                     .num_rows = part.q_len,
                                     .first = static_cast<int32_t>(plan.selecting_kv_len.size()),
                                     .as_bits = as_bits});
    for (int32_t i = 0; i < part.q_len; ++i) {
      plan.selecting_seq_idx.push_back(part.seq_idx);
      plan.selecting_kv_len.push_back(part.kv_len - part.q_len + i + 1);
    }
  }
  if (as_bits && segment.q_len > 0)
    plan.bits_words = std::max(plan.bits_words, (int64_t{segment.kv_len} + 63) / 64);
}

// Adds the un-absorbed passes of segments.
void add_passes(std::span<const PrefillSegment> segments, int64_t max_keys, bool selects, PrefillPlan& plan) {
  const auto open = [&](bool accumulate, int32_t first_key) -> PrefillPass& {
    PrefillPass& pass = open_pass(plan, accumulate);
    pass.selects = selects;
    pass.first_key = first_key;
    return pass;
  };
  // Segments that fit are placed longest first, each in the first pass with room for it. The passes are
  // filled one after the other, because their runs are adjacent in the arrays.
  std::vector<int32_t> waiting;
  for (size_t i = 0; i < segments.size(); ++i) {
    const PrefillSegment& segment = segments[i];
    HADAL_CHECK(segment.q_len >= 0 && segment.q_len <= segment.kv_len,
                "segment {} has {} new tokens and {} keys; it must have at most as many new tokens as keys",
                i, segment.q_len, segment.kv_len);
    if (segment.q_len > 0 && segment.kv_len <= max_keys) waiting.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(waiting.begin(), waiting.end(),
                   [&](int32_t a, int32_t b) { return segments[a].kv_len > segments[b].kv_len; });
  while (!waiting.empty()) {
    PrefillPass& pass = open(false, 0);
    std::erase_if(waiting, [&](int32_t i) {
      if (pass.num_keys + segments[i].kv_len > max_keys) return false;
      add_keys(segments[i], 0, segments[i].kv_len, pass, plan);
      return true;
    });
  }

  // Longer segments are cut into as few pieces as possible, of about equal sizes.
  const int64_t largest = max_keys / kPageSize * kPageSize;
  for (const PrefillSegment& segment : segments) {
    if (segment.q_len == 0 || segment.kv_len <= max_keys) continue;
    const int64_t num_pieces = (segment.kv_len + largest - 1) / largest;
    const int64_t even = (segment.kv_len + num_pieces - 1) / num_pieces;
    const int64_t piece = (even + kPageSize - 1) / kPageSize * kPageSize;
    for (int64_t begin = 0; begin < segment.kv_len; begin += piece) {
      const int64_t end = std::min<int64_t>(begin + piece, segment.kv_len);
      add_keys(segment, static_cast<int32_t>(begin), static_cast<int32_t>(end),
               open(begin > 0, static_cast<int32_t>(begin)), plan);
    }
  }
}

}  // namespace

void PrefillPlan::clear() {
  key_runs.clear();
  segment_runs.clear();
  passes.clear();
  group_rows = 1;
  absorbed_rows.clear();
  absorbed_seq_idx.clear();
  absorbed_kv_len.clear();
  absorbed_passes.clear();
  absorbed_pairs = 0;
  selecting_seq_idx.clear();
  selecting_kv_len.clear();
  selecting_passes.clear();
  bits_words = 0;
}

// Compares the times of both paths by the numbers of kernels/cuda/mla/prefill/fitted.h.
bool prefill_absorbed(int64_t q_len, int64_t kv_len, const PrefillPaths& paths) {
  if (paths.num_heads == 0 || q_len <= 0 || kv_len - q_len < kPageSize) return false;
  const auto keys = static_cast<double>(kv_len);
  const double heads = paths.num_heads;
  const cuda::fitted::UnabsorbedTimes& plain = cuda::fitted::kUnabsorbed;
  const double expand = paths.fp8_weights ? plain.expand_fp8 : plain.expand_16_bit;
  const double waves =
      std::max(1.0, static_cast<double>(q_len) * heads / (plain.tile_queries * plain.tiles_at_once));
  const double unabsorbed = plain.launches + keys * (heads * expand + plain.key_of_wave * waves);
  const cuda::fitted::AbsorbedTimes& times = cuda::fitted::kAbsorbed;
  const int64_t group = absorbed_group_rows(paths.num_heads);
  const auto groups = static_cast<double>((q_len + group - 1) / group);
  const double rows = groups * static_cast<double>(group) * heads;
  const bool widened =
      paths.layout.format == KvFormat::kFp8E4M3 && paths.layout.scales != KvScales::kPerToken;
  const double flop_per_us = widened ? times.flop_per_us_widened : times.flop_per_us;
  const double absorbed =
      times.launches + times.tile * rows / times.tile_rows + rows * times.flop_of_key * keys / flop_per_us;
  return absorbed < unabsorbed;
}

void plan_prefill(std::span<const PrefillSegment> all_segments, int64_t max_keys, const PrefillPaths& paths,
                  PrefillPlan& plan) {
  HADAL_CHECK(max_keys >= kPageSize, "max_keys is {}; must be at least {}", max_keys, kPageSize);
  plan.clear();
  if (paths.num_heads > 0) plan.group_rows = absorbed_group_rows(paths.num_heads);
  std::vector<PrefillSegment> segments;  // those that attend un-absorbed to all keys
  std::vector<PrefillSegment> masked;    // those that attend un-absorbed to a selection
  for (const PrefillSegment& whole : all_segments) {
    const int32_t prior = whole.kv_len - whole.q_len;
    // Returns the number of tokens that see at most `keys` keys.
    const auto up_to = [&](int64_t keys) {
      return static_cast<int32_t>(std::clamp<int64_t>(keys - prior, 0, std::max(whole.q_len, 0)));
    };
    const bool indexed = paths.index_topk > 0;
    const int32_t to_all = indexed ? up_to(paths.index_topk) : whole.q_len;
    const int32_t unabsorbed = indexed ? std::min(to_all, up_to(paths.threshold())) : whole.q_len;
    const int32_t to_masked = std::max(to_all, indexed ? up_to(paths.threshold()) : to_all);
    if (prefill_absorbed(unabsorbed, prior + unabsorbed, paths)) {
      add_groups(part_of(whole, 0, to_all), plan);
    } else {
      segments.push_back(part_of(whole, 0, unabsorbed));
      if (unabsorbed < to_all) add_groups(part_of(whole, unabsorbed, to_all), plan);
    }
    if (!indexed) continue;
    masked.push_back(part_of(whole, to_all, to_masked));
    add_selecting(masked.back(), /*as_bits=*/true, plan);
    add_selecting(part_of(whole, to_masked, whole.q_len), /*as_bits=*/false, plan);
  }
  const auto num_groups = static_cast<int32_t>(plan.absorbed_kv_len.size());
  const auto groups_a_pass = static_cast<int32_t>(kMaxAbsorbedRows / plan.group_rows);
  for (int32_t first = 0; first < num_groups; first += groups_a_pass)
    plan.absorbed_passes.push_back({first, std::min(groups_a_pass, num_groups - first)});
  add_passes(segments, max_keys, /*selects=*/false, plan);
  add_passes(masked, max_keys, /*selects=*/true, plan);
}

}  // namespace hadal
