#include "cli/static_batch.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace hadal::cli {

StaticBatch::StaticBatch(std::span<const int64_t> max_tokens) {
  first_page_.push_back(0);
  for (const int64_t tokens : max_tokens) {
    const int64_t pages = (tokens + kPageSize - 1) / kPageSize;
    first_page_.push_back(first_page_.back() + pages);
    page_table_stride_ = std::max(page_table_stride_, pages);
  }
}

StaticBatch::StaticBatch(int64_t num_sequences, int64_t max_tokens)
    : StaticBatch(std::vector<int64_t>(static_cast<size_t>(num_sequences), max_tokens)) {}

void StaticBatch::start() {
  batch_.clear();
  batch_.page_table_stride = page_table_stride_;
  batch_.page_table.assign(static_cast<size_t>(num_sequences() * page_table_stride_), -1);
  for (int64_t sequence = 0; sequence < num_sequences(); ++sequence) {
    const auto first = batch_.page_table.begin() + sequence * page_table_stride_;
    std::iota(first, first + pages_of(sequence), static_cast<int32_t>(first_page_[sequence]));
  }
}

void StaticBatch::add_row(int64_t sequence, int32_t id, int64_t position) {
  HADAL_CHECK_LT(position, pages_of(sequence) * kPageSize);
  batch_.token_ids.push_back(id);
  batch_.positions.push_back(static_cast<int32_t>(position));
  batch_.slots.push_back(first_page_[sequence] * kPageSize + position);  // because its pages are consecutive
}

const ForwardBatch& StaticBatch::prefill(std::span<const int32_t> ids, int64_t begin, bool all_logits,
                                         int64_t first_sequence, int64_t num_sequences) {
  start();
  const int64_t count = static_cast<int64_t>(ids.size()) / num_sequences;
  for (int64_t n = 0; n < num_sequences; ++n) {
    const int64_t sequence = first_sequence + n;
    const int64_t first_row = batch_.num_tokens();
    for (int64_t i = 0; i < count; ++i) add_row(sequence, ids[n * count + i], begin + i);
    batch_.segments.push_back({.seq_idx = static_cast<int32_t>(sequence),
                               .q_begin = static_cast<int32_t>(first_row),
                               .q_len = static_cast<int32_t>(count),
                               .kv_len = static_cast<int32_t>(begin + count)});
    for (int64_t i = all_logits ? 0 : count - 1; i < count; ++i) {
      batch_.logit_rows.push_back(static_cast<int32_t>(first_row + i));
    }
  }
  batch_.num_prefill_tokens = batch_.num_tokens();
  return batch_;
}

const ForwardBatch& StaticBatch::decode(std::span<const int32_t> ids, std::span<const int64_t> positions) {
  start();
  for (int64_t sequence = 0; sequence < num_sequences(); ++sequence) {
    add_row(sequence, ids[sequence], positions[sequence]);
    batch_.decode_seq_idx.push_back(static_cast<int32_t>(sequence));
    batch_.decode_kv_len.push_back(static_cast<int32_t>(positions[sequence] + 1));
    batch_.logit_rows.push_back(static_cast<int32_t>(sequence));
  }
  return batch_;
}

const ForwardBatch& StaticBatch::decode(std::span<const int32_t> ids, int64_t position) {
  return decode(ids, std::vector<int64_t>(static_cast<size_t>(num_sequences()), position));
}

const ForwardBatch& StaticBatch::pages_only() {
  start();
  return batch_;
}

}  // namespace hadal::cli
