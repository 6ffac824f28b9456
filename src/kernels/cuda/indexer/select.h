// Declares the two launches of index_select: the first scores all keys, the second chooses among them. Both
// work on at most rows_at_once rows of a call, and the pointers here point to the first of these rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/indexer/indexer.h"

namespace hadal::cuda {

struct IndexScoreArgs {
  const fp8_e4m3* q;  // [num_rows, num_heads, 128]
  const float* w;     // [num_rows, num_heads]
  const std::byte* pool;
  const int32_t* page_table;
  int64_t page_table_stride;
  const int32_t* seq_idx;  // [num_rows]
  const int32_t* kv_len;   // [num_rows]
  float* scores;           // [num_rows, score_stride]; written for positions below kv_len
  int64_t score_stride;    // a multiple of 64
  int num_rows;
  int num_heads;
  int topk;
};
void index_score(const IndexScoreArgs& args, int group_rows, const Launch& launch);

struct IndexChooseArgs {
  const float* scores;
  int64_t score_stride;
  const int32_t* page_table;
  int64_t page_table_stride;
  const int32_t* seq_idx;
  const int32_t* kv_len;
  int32_t* slots;   // [num_rows, topk]; null if `bits` is set
  int32_t* counts;  // [num_rows]; set with `slots`
  uint64_t* bits;   // [num_rows, bits_stride]; null if `slots` is set
  int64_t bits_stride;
  int num_rows;
  int topk;
};
void index_choose(const IndexChooseArgs& args, int cluster, const Launch& launch);

}  // namespace hadal::cuda
