// Writes rows of batches that the device makes, for the kernels that keep chains and trees of drafts.
#pragma once

#include "kernels/cuda/speculation/speculation.h"
#include "kernels/params/kv_layout.h"

namespace hadal::cuda {

// Returns the slot of the record at a position. The host has pages for every row, so a missing one is a
// broken invariant.
__device__ inline int64_t record_slot(const Chains& c, int32_t seq_idx, int64_t position) {
  const int64_t block = position / kPageSize;
  if (block >= c.page_table_stride) __trap();
  const int32_t page = c.page_table[seq_idx * c.page_table_stride + block];
  if (page < 0) __trap();
  return int64_t{page} * kPageSize + position % kPageSize;
}

__device__ inline void write_row(const Chains& c, const ChainRows& rows, int64_t row, int32_t seq_idx,
                                 int64_t position, int32_t token) {
  rows.token_ids[row] = token;
  rows.positions[row] = static_cast<int32_t>(position);
  rows.slots[row] = record_slot(c, seq_idx, position);
  if (rows.seq_idx != nullptr) rows.seq_idx[row - rows.num_prefill] = seq_idx;
  rows.kv_len[row - rows.num_prefill] = static_cast<int32_t>(position + 1);
}
__device__ inline void write_padding(const ChainRows& rows, int64_t row) {
  rows.token_ids[row] = 0;
  rows.positions[row] = 0;
  rows.slots[row] = -1;
  if (rows.seq_idx != nullptr) rows.seq_idx[row - rows.num_prefill] = 0;
  rows.kv_len[row - rows.num_prefill] = 0;
}

__device__ inline SampleRow sample_row(int32_t slot, int32_t logit_row, int64_t position, int32_t mask_row) {
  SampleRow row;
  row.slot = slot;
  row.logit_row = logit_row;
  row.position = position;
  row.mask_row = mask_row;
  return row;
}

// Returns the number of tokens that item i has sampled in this step.
__device__ inline int num_sampled(const Chains& c, int i) {
  int count = 0;
  while (count < c.width && count < c.num_rows[i] && c.results[count * c.num_items + i].token >= 0) ++count;
  return count;
}

// Ends a step for item i, which has sampled `count` tokens: sets the slot's length, the row that gives the
// first draft of the next step, and the sampling row for it.
__device__ inline void end_item(const Chains& c, int i, const ChainItem& item, int count,
                                int32_t* guess_rows) {
  const int64_t length = c.positions[i] + count;
  if (item.slot >= 0) c.lengths[item.slot] = count == 0 ? 0 : static_cast<int32_t>(length);
  guess_rows[i] = item.first_row + (count == 0 ? 0 : count - 1);
  const bool guesses = count > 0 && !(c.rests && item.verifies != 0);
  c.sample_rows[i] = sample_row(guesses ? item.slot : -1, i, length, -1);
}

}  // namespace hadal::cuda
