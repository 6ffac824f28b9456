// Decides how the selection of keys is divided among the blocks of a device, and holds the index arithmetic
// of its kernels. All functions here are pure functions of numbers, and are also built and tested without
// CUDA.
//
// Scores are computed in units of 32 keys, half a page. The score kernel's blocks are resident and divide the
// units of all rows evenly among themselves, so a step's time depends on its lengths, not on their limit. A
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
  // keys for eight rows. It changes speed only.
  bool rows_share_keys = false;
};

inline constexpr int64_t kMaxIndexScoreBytes = int64_t{256} << 20;
inline constexpr int kMaxIndexGroups = 1024;  // groups of rows in a launch; a block holds their prefix sums
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
// Checks the shape and returns its plan. If most_keys is at most topk, workspace_bytes and rows_at_once are
// 0. The number of multiprocessors affects only select_cluster.
IndexSelectPlan index_select_plan(const IndexSelectShape& shape, int num_sms);
size_t index_select_workspace_bytes(const IndexSelectShape& shape);

// The blocks that choose keep scores in shared memory, in tiles of this many. They begin beside the blocks
// that score, so both must fit on a multiprocessor.
inline constexpr int kIndexKeptTile = 4 * kIndexSelectThreads;
inline constexpr int kIndexChooseBytes = 25 * 1024;   // shared memory of a block that chooses, without scores
inline constexpr int kIndexScoreBytes = 138 * 1024;   // shared memory of a block that scores
inline constexpr int kIndexSharedBytes = 227 * 1024;  // of a multiprocessor, apart from 1 KB for each block
// Returns how many scores of its slice a block keeps: as many as the slice may have, if there is memory.
int index_kept_scores(int64_t score_stride, int num_rows, int cluster, int num_sms);

// Returns true if a row that sees num_keys keys attends to a selection of them.
constexpr bool selects_keys(int32_t num_keys, int topk) {
  return num_keys > topk;
}
constexpr int index_units(int32_t num_keys, int topk) {
  return selects_keys(num_keys, topk) ? (num_keys + kIndexUnitKeys - 1) / kIndexUnitKeys : 0;
}
// Returns the first unit of block `block`'s share; for block num_blocks it returns the end of all units.
constexpr int share_begin(int64_t num_units, int block, int num_blocks) {
  return static_cast<int>(num_units * block / num_blocks);
}

// Returns the byte offset of 16-byte chunk 0 … 7 of a key in shared memory. A warp reads two rows at once, so
// odd rows have their halves exchanged, to avoid bank conflicts.
constexpr uint32_t index_key_offset(uint32_t key, uint32_t chunk) {
  return key * kIndexHeadDim + ((chunk ^ ((key & 1U) << 2)) << 4);
}
// Returns the key whose score lies in lane `lane` after the sum over heads, as a number within the unit.
constexpr int key_of_lane(int lane) {
  const int group = lane / 4;
  return group / 2 * 8 + lane % 4 * 2 + group % 2;
}

// Maps a score's bits to a number that is larger for a better score. NaN maps to 0, and −0 maps to the same
// number as +0.
constexpr uint32_t sortable_score(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return 0;
  if (magnitude == 0) return 0x80000000U;
  return bits == magnitude ? bits | 0x80000000U : ~bits;
}

// The border, which is the lowest chosen score, is found in three digits, the highest digit first.
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
// Returns true if all digits above `digit` are the same in a score as in the border.
constexpr bool above_digits_equal(uint32_t sortable, uint32_t border, int digit) {
  return digit == 0 || (sortable ^ border) >> (digit_shift(digit) + digit_bits(digit)) == 0;
}

// Returns the first position of block `rank`'s slice of a row of `extent` positions. It is a multiple of 64
// (or `extent`), so that each word of bits belongs to one block.
constexpr int64_t slice_begin(int64_t extent, int rank, int num_blocks) {
  const int64_t length = ((extent + num_blocks - 1) / num_blocks + 63) / 64 * 64;
  return length * rank < extent ? length * rank : extent;
}

}  // namespace hadal::cuda
