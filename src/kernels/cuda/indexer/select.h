// Declares the two launches of index_select: scores of all keys, then the choice. Both work on the rows of
// one piece of a call, which begin at the pointers here.
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
  int32_t* slots;  // [num_rows, topk]; or null, with
  int32_t* counts;
  uint64_t* bits;  // [num_rows, bits_stride]
  int64_t bits_stride;
  int num_rows;
  int topk;
};
void index_choose(const IndexChooseArgs& args, int cluster, const Launch& launch);

}  // namespace hadal::cuda
