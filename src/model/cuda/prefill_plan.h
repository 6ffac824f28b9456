// Plans attention for a step's prompt segments. Most attend un-absorbed, in passes over bounded numbers of
// keys, whose results are merged by log-sum-exp. If a few tokens extend a long cached prefix, they attend
// absorbed, as in decode. With an indexer (V3.2), tokens that see more than index_topk keys attend to a
// selection of them: un-absorbed, with the selection as a mask, if they see at most as many keys as a
// threshold says, and absorbed otherwise. The plan is a pure function of the segments, on the host; its
// arrays are copied to the device with the step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/mla/mla.h"
#include "kernels/params/mla.h"

namespace hadal {

// Describes one pass by ranges into the plan's arrays. In a pass, keys are gathered into a buffer, expanded
// by kv_b, and attended to.
struct PrefillPass {
  int32_t first_key_run = 0, num_key_runs = 0;
  int32_t first_segment_run = 0, num_segment_runs = 0;
  int64_t num_keys = 0;
  int64_t max_count = 0;    // the longest key run
  bool accumulate = false;  // queries of this pass were in an earlier one
  bool selects = false;     // queries attend to the keys that have a bit
  int32_t first_key = 0;    // position of the first key of all runs
};

// Describes groups of tokens that attend absorbed together: groups [first_group, first_group + num_groups) of
// the plan.
struct AbsorbedPass {
  int32_t first_group = 0, num_groups = 0;
};

// Describes neighbouring rows of one segment for which keys are selected together: rows [first_row, first_row
// + num_rows) of the step, whose entries in the plan's arrays are [first, first + num_rows). They attend to
// their selections absorbed. With as_bits only bits are written, and un-absorbed passes attend later.
struct SelectingPass {
  int32_t first_row = 0, num_rows = 0;
  int32_t first = 0;
  bool as_bits = false;
};

struct PrefillPlan {
  // These belong to the un-absorbed path.
  std::vector<cuda::KeyRun> key_runs;
  std::vector<cuda::PrefillSegmentRun> segment_runs;
  std::vector<PrefillPass> passes;
  // The absorbed path: a group is group_rows consecutive tokens of a segment, and is a sequence of mla_decode
  // with group_rows queries. If a segment's length is not a multiple of group_rows, its first group begins
  // with empty rows.
  int group_rows = 1;
  std::vector<int32_t> absorbed_rows;     // [groups · group_rows]: row of q; −1: empty
  std::vector<int32_t> absorbed_seq_idx;  // [groups]
  std::vector<int32_t> absorbed_kv_len;   // [groups]: keys that the group's last token sees
  std::vector<AbsorbedPass> absorbed_passes;
  int64_t absorbed_pairs = 0;  // pairs of queries (including empty ones) and keys
  // These belong to the rows that select keys.
  std::vector<int32_t> selecting_seq_idx;  // [rows that select]
  std::vector<int32_t> selecting_kv_len;   // [rows that select]: keys that the row sees
  std::vector<SelectingPass> selecting_passes;
  int64_t bits_words = 0;  // words of 64 keys that a row's bits need; 0: no pass writes bits
  void clear();
};

// Holds the inputs of the choice between the paths, besides the segment.
struct PrefillPaths {
  int num_heads = 0;  // 0: all segments attend un-absorbed
  KvLayout layout;
  bool fp8_weights = false;
  int64_t index_topk = 0;  // tokens that see more keys select this many of them; 0: none does
  // Tokens that see more keys than this attend absorbed; −1: than index_topk. It affects speed, and results
  // by rounding only.
  int64_t seq_len_threshold = -1;

  int64_t threshold() const { return seq_len_threshold < 0 ? index_topk : seq_len_threshold; }
  // Returns true if tokens may attend un-absorbed to a selection.
  bool masks() const { return index_topk > 0 && threshold() > index_topk; }
};

// Returns the rows of an absorbed group, 1 to 8: as many as make up to 128 queries over all heads, or 1 row.
constexpr int absorbed_group_rows(int num_heads) {
  int rows = 1;
  while (rows < 8 && rows * 2 * num_heads <= 128) rows *= 2;
  return rows;
}

// Returns true if q_len new tokens after a cached prefix attend absorbed. The rule is fitted to measured
// times of both paths on one H200 (docs/kernels/cuda-mla-prefill.md). It depends only on the segment's own
// lengths.
bool prefill_absorbed(int64_t q_len, int64_t kv_len, const PrefillPaths& paths);

// Every segment sees all its keys [0, kv_len). The un-absorbed path has at most max_keys per pass, in as few
// passes as possible. Segments whose keys fit share a pass. A segment with more keys is cut at multiples of
// 64 positions, in ascending order, and shares its passes with no other. Either all segments of a pass
// accumulate or none does. The absorbed path has at most kMaxAbsorbedRows rows per pass.
//
// With paths.index_topk a segment is cut before its first token that sees more than index_topk keys, and
// before its first token that sees more than threshold() keys. The tokens before the first cut attend as
// above, as if the later ones did not exist. Tokens that see more than index_topk keys select, in passes of
// at most kMaxAbsorbedRows. Of these, tokens that see at most threshold() keys then attend un-absorbed, in
// passes of their own. If the threshold is below index_topk, tokens between the two attend absorbed to all
// keys.
void plan_prefill(std::span<const PrefillSegment> segments, int64_t max_keys, const PrefillPaths& paths,
                  PrefillPlan& plan);

// An absorbed or selecting pass has at most this many rows, including empty ones, which bounds the memory of
// its queries [rows, heads, 576] and outputs [rows, heads, 512].
inline constexpr int64_t kMaxAbsorbedRows = 512;

}  // namespace hadal
