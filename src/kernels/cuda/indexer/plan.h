// Decides how the choice of keys is cut on a device, and holds the index arithmetic of its kernels.
// Everything here is a pure function of numbers, which builds without CUDA contain and test as well.
//
// Scores are computed in units of 32 keys, half a page. The score kernel's blocks are resident and divide the
// units of all rows evenly between them, so what a step costs depends on its lengths, not on their limit. A
// cluster of blocks then selects from the scores of a row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/params/indexer.h"

namespace hadal::cuda {

struct IndexSelectShape {
  int64_t num_rows = 0;
  int num_heads = 0;      // 1 … kMaxIndexHeads
  int topk = 0;           // 1 … kMaxIndexTopk
  int64_t most_keys = 0;  // no row sees more keys
  // True for prompts: most neighbouring rows are tokens of one sequence, so a block's warps score the same
  // keys for eight of them. It changes speed only.
  bool rows_share_keys = false;
};

inline constexpr int64_t kMaxIndexScoreBytes = int64_t{256} << 20;
inline constexpr int kMaxIndexGroups = 1024;  // of a launch; a block holds their prefix sums
inline constexpr int kIndexUnitKeys = 32;
inline constexpr int kIndexScoreWarps = 8;
inline constexpr int kIndexSelectThreads = 512;

struct IndexSelectPlan {
  int group_rows = 1;          // rows that a block scores together
  int64_t score_stride = 0;    // floats from row to row of the workspace
  int64_t rows_at_once = 0;    // rows of one pair of launches
  int select_cluster = 1;      // blocks that select from one row's scores
  size_t workspace_bytes = 0;  // rows_at_once · score_stride · 4, at most kMaxIndexScoreBytes
};
// Checks the shape. A shape of at most topk keys has no workspace and no rows at once. The number of
// multiprocessors decides select_cluster alone.
IndexSelectPlan index_select_plan(const IndexSelectShape& shape, int num_sms);
size_t index_select_workspace_bytes(const IndexSelectShape& shape);

// Returns true if a row that sees num_keys keys attends to a selection of them.
constexpr bool selects_keys(int32_t num_keys, int topk) {
  return num_keys > topk;
}
constexpr int index_units(int32_t num_keys, int topk) {
  return selects_keys(num_keys, topk) ? (num_keys + kIndexUnitKeys - 1) / kIndexUnitKeys : 0;
}
// Returns where the share of block `block` begins; that of block num_blocks is the end.
constexpr int share_begin(int64_t num_units, int block, int num_blocks) {
  return static_cast<int>(num_units * block / num_blocks);
}

// The 16-byte chunks of a key in shared memory: a warp reads two rows at once, so odd rows have their halves
// exchanged. Returns the byte offset of chunk 0 … 7 of a key.
constexpr uint32_t index_key_offset(uint32_t key, uint32_t chunk) {
  return key * kIndexHeadDim + ((chunk ^ ((key & 1U) << 2)) << 4);
}
// Returns the key of a unit whose score lane `lane` has after the sum over heads.
constexpr int key_of_lane(int lane) {
  const int group = lane / 4;
  return group / 2 * 8 + lane % 4 * 2 + group % 2;
}

// Maps a score's bits to a number that is larger for a better score: NaN to 0, and −0 to what +0 has.
constexpr uint32_t sortable_score(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return 0;
  if (magnitude == 0) return 0x80000000U;
  return bits == magnitude ? bits | 0x80000000U : ~bits;
}

// The border is found in three digits, from the highest one.
inline constexpr int kScoreDigits = 3;
inline constexpr int kScoreBins = 2048;
constexpr int digit_shift(int digit) {
  return digit == 0 ? 21 : digit == 1 ? 10 : 0;
}
constexpr int digit_bits(int digit) {
  return digit == 2 ? 10 : 11;
}
constexpr uint32_t score_digit(uint32_t sortable, int digit) {
  return sortable >> digit_shift(digit) & ((1U << digit_bits(digit)) - 1);
}
// Returns true if a score has the digits above `digit` that the border has.
constexpr bool above_digits_equal(uint32_t sortable, uint32_t border, int digit) {
  return digit == 0 || (sortable ^ border) >> (digit_shift(digit) + digit_bits(digit)) == 0;
}

// Returns where the slice of block `rank` begins of a row of `extent` positions: a multiple of 64, so that
// each word of bits belongs to one block.
constexpr int64_t slice_begin(int64_t extent, int rank, int num_blocks) {
  const int64_t length = ((extent + num_blocks - 1) / num_blocks + 63) / 64 * 64;
  return length * rank < extent ? length * rank : extent;
}

}  // namespace hadal::cuda
