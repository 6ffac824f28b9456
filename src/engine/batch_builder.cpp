#include "engine/batch_builder.h"

#include <algorithm>

namespace hadal {
namespace {

// First position of the prompt whose logits are wanted: position p's logits score token p + 1.
int64_t first_wanted_position(const Sequence& sequence) {
  const LogprobOptions& options = sequence.request.logprobs;
  const int64_t last = sequence.prompt_len - 1;
  if (!options.enabled || options.start < 0) return last;
  return std::min(options.start, last);
}

}  // namespace

std::vector<StepItem> plan_step(const std::vector<Sequence*>& running, int64_t prefill_budget) {
  std::vector<StepItem> items;
  for (Sequence* sequence : running) {
    if (!sequence->in_prefill() || prefill_budget == 0) continue;
    const int64_t count = std::min(prefill_budget, sequence->prompt_len - sequence->num_computed);
    prefill_budget -= count;
    items.push_back({.sequence = sequence, .num_tokens = count});
  }
  for (Sequence* sequence : running) {
    if (!sequence->in_prefill()) items.push_back({.sequence = sequence, .num_tokens = 1});
  }
  int64_t row = 0;
  for (StepItem& item : items) {
    const Sequence& sequence = *item.sequence;
    const int64_t end = sequence.num_computed + item.num_tokens;
    const int64_t first = sequence.in_prefill()
                              ? std::max(first_wanted_position(sequence), sequence.num_computed)
                              : sequence.num_computed;
    item.first_logit_row = row;
    item.num_logit_rows = std::max<int64_t>(end - first, 0);
    row += item.num_logit_rows;
  }
  return items;
}

void build_batch(const std::vector<StepItem>& items, ForwardBatch& batch) {
  batch.clear();
  for (const StepItem& item : items) {
    batch.page_table_stride =
        std::max(batch.page_table_stride, static_cast<int64_t>(item.sequence->pages.size()));
  }
  for (size_t i = 0; i < items.size(); ++i) {
    const Sequence& sequence = *items[i].sequence;
    const int64_t begin = sequence.num_computed;
    const int64_t end = begin + items[i].num_tokens;
    const auto first_row = static_cast<int32_t>(batch.token_ids.size());
    for (int64_t position = begin; position < end; ++position) {
      batch.token_ids.push_back(sequence.tokens[position]);
      batch.positions.push_back(static_cast<int32_t>(position));
      batch.slots.push_back(int64_t{sequence.pages[position / kPageSize]} * kPageSize + position % kPageSize);
    }
    if (sequence.in_prefill()) {
      batch.segments.push_back({.seq_idx = static_cast<int32_t>(i),
                                .q_begin = first_row,
                                .q_len = static_cast<int32_t>(items[i].num_tokens),
                                .kv_len = static_cast<int32_t>(end)});
      batch.num_prefill_tokens += items[i].num_tokens;
    } else {
      batch.decode_seq_idx.push_back(static_cast<int32_t>(i));
      batch.decode_kv_len.push_back(static_cast<int32_t>(end));
    }
    const auto last_row = static_cast<int32_t>(batch.token_ids.size());
    for (auto row = static_cast<int32_t>(last_row - items[i].num_logit_rows); row < last_row; ++row) {
      batch.logit_rows.push_back(row);
    }
    std::vector<int32_t> pages(sequence.pages.begin(), sequence.pages.end());
    pages.resize(batch.page_table_stride, -1);  // never read: beyond the sequence's length
    batch.page_table.insert(batch.page_table.end(), pages.begin(), pages.end());
  }
}

}  // namespace hadal
