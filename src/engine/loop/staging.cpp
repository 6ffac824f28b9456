#include "engine/loop/staging.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace hadal {
namespace {

SlotStart start_of(const Sequence& sequence, int32_t slot) {
  const SamplingParams& sampling = sequence.request.sampling;
  TokenHistory history(uses_prompt_tokens(sampling) ? sequence.tokens.prompt() : TokenIds(),
                       uses_token_counts(sampling));
  history.add_generated(sequence.tokens.generated());
  return {.slot = slot,
          .sampling = sampling,
          .seed = sequence.seed,
          .eos_token_ids = sequence.eos,
          .history = std::move(history),
          .logprobs = sequence.request.logprobs};
}

// Returns the token after a position, or -1 if it is not known.
int32_t token_after(const Sequence& sequence, int64_t position) {
  return position + 1 < static_cast<int64_t>(sequence.tokens.size()) ? sequence.tokens[position + 1] : -1;
}

}  // namespace

Staging::Staging(const SequenceTable& sequences, int64_t max_running_requests, bool speculates)
    : sequences_(sequences), speculates_(speculates), slots_(static_cast<size_t>(max_running_requests)) {}

void Staging::clear() noexcept {
  for (Slot& slot : slots_) {
    slot.sequence = nullptr;
    slot.pages.clear();
  }
}

StagedStep Staging::stage(StepRecord& record) {
  HADAL_CHECK_EQ(record.plan.ranks.size(), 1U);
  const RankPlan& plan = record.plan.ranks[0];
  StagedStep staged;
  staged.step = record.plan.step;
  staged.copies = plan.copies;
  ForwardBatch& batch = staged.batch;
  const auto num_tokens = static_cast<size_t>(record.plan.num_prefill_tokens + record.plan.num_decode_tokens);
  batch.token_ids.reserve(num_tokens);
  batch.positions.reserve(num_tokens);
  batch.slots.reserve(num_tokens);
  batch.decode_seq_idx.reserve(plan.items.size());
  batch.decode_kv_len.reserve(plan.items.size());
  batch.logit_rows.reserve(plan.items.size());
  staged.samples.reserve(plan.items.size());
  staged.feeds.reserve(plan.items.size());
  record.samples.reserve(plan.items.size());

  for (const WorkItem& item : plan.items) {
    const Slot& slot = start_item(plan, item, staged, record);
    batch.page_table_stride = std::max(batch.page_table_stride, static_cast<int64_t>(slot.pages.size()));
  }
  batch.page_table.reserve(plan.items.size() * static_cast<size_t>(batch.page_table_stride));
  for (const WorkItem& item : plan.items) {
    const Slot& slot = slots_[item.slot];
    if (item.verifies) {
      add_verify(slot, item, staged, record);
    } else if (item.kind != WorkKind::kDecode) {
      add_prompt(slot, item, staged, record);
    } else {
      add_decode(slot, item, staged);
    }
    if (item.samples && !item.verifies) add_sample(slot, item, staged, record);
    batch.page_table.insert(batch.page_table.end(), slot.pages.begin(), slot.pages.end());
    // These entries are never read, because they lie beyond the sequence's length.
    const size_t padding = static_cast<size_t>(batch.page_table_stride) - slot.pages.size();
    batch.page_table.insert(batch.page_table.end(), padding, -1);
  }
  return staged;
}

// Updates the slot's page table.
Staging::Slot& Staging::start_item(const RankPlan& plan, const WorkItem& item, StagedStep& staged,
                                   StepRecord& record) {
  HADAL_CHECK_LT(static_cast<size_t>(item.slot), slots_.size());
  Slot& slot = slots_[item.slot];
  if (item.starts_slot) {
    const auto found = sequences_.find(item.request_id);
    HADAL_CHECK(found != sequences_.end(), "the plan starts request {}, which is unknown", item.request_id);
    slot.sequence = found->second.get();
    slot.pages.clear();
    slot.sequence->restarts_sampling = true;
    if (!slot.sequence->admitted) record.admitted.push_back(slot.sequence);
  }
  HADAL_CHECK(slot.sequence != nullptr && slot.sequence->id == item.request_id,
              "slot {} does not belong to request {}", item.slot, item.request_id);
  HADAL_CHECK(!slot.sequence->finished, "the plan has work for request {}, which has ended", item.request_id);
  if (std::exchange(slot.sequence->restarts_sampling, false)) {
    staged.slots.push_back(start_of(*slot.sequence, item.slot));
  }
  const auto first = plan.new_pages.begin() + item.first_new_page;
  slot.pages.insert(slot.pages.end(), first, first + item.num_new_pages);
  HADAL_CHECK_GE(static_cast<int64_t>(slot.pages.size()) * kPageSize, item.begin + item.num_tokens);
  slot.sequence->last_step = record.plan.step;
  return slot;
}

void Staging::add_prompt(const Slot& slot, const WorkItem& item, StagedStep& staged, StepRecord& record) {
  Sequence& sequence = *slot.sequence;
  ForwardBatch& batch = staged.batch;
  const int64_t begin = item.begin;
  const int64_t end = begin + item.num_tokens;
  HADAL_CHECK_LE(end, sequence.prompt_len);
  const auto first_row = static_cast<int32_t>(batch.token_ids.size());
  const TokenIds& prompt = sequence.tokens.prompt();
  batch.token_ids.insert(batch.token_ids.end(), prompt.begin() + begin, prompt.begin() + end);
  for (int64_t position = begin; position < end; ++position) {
    batch.positions.push_back(static_cast<int32_t>(position));
    batch.slots.push_back(int64_t{slot.pages[position / kPageSize]} * kPageSize + position % kPageSize);
    if (speculates_) staged.next_ids.push_back(token_after(sequence, position));
  }
  const auto seq_idx = static_cast<int32_t>(&item - record.plan.ranks[0].items.data());
  if (item.kind == WorkKind::kPrefill) {
    HADAL_CHECK(batch.decode_seq_idx.empty(), "un-absorbed items come first");
    batch.segments.push_back({.seq_idx = seq_idx,
                              .q_begin = first_row,
                              .q_len = item.num_tokens,
                              .kv_len = static_cast<int32_t>(end)});
    batch.num_prefill_tokens += item.num_tokens;
  } else {
    for (int64_t position = begin; position < end; ++position) {
      batch.decode_seq_idx.push_back(seq_idx);
      batch.decode_kv_len.push_back(static_cast<int32_t>(position + 1));
    }
  }

  // The logits of position p score token p + 1.
  for (int64_t p = std::max(sequence.next_scored, begin); p < std::min(end, sequence.prompt_len - 1); ++p) {
    staged.scores.push_back({.slot = item.slot,
                             .logit_row = static_cast<int32_t>(batch.logit_rows.size()),
                             .token_id = prompt[p + 1]});
    record.scores.push_back(&sequence);
    batch.logit_rows.push_back(first_row + static_cast<int32_t>(p - begin));
  }
  sequence.next_scored = std::max(sequence.next_scored, end);
  if (item.ends_request) record.ended_prompts.push_back(&sequence);
}

void Staging::add_decode(const Slot& slot, const WorkItem& item, StagedStep& staged) {
  const Sequence& sequence = *slot.sequence;
  ForwardBatch& batch = staged.batch;
  const auto seq_idx = static_cast<int32_t>(batch.page_table.size() / batch.page_table_stride);
  for (int64_t position = item.begin; position < item.begin + item.num_tokens; ++position) {
    if (item.input_from_previous) {
      staged.feeds.push_back({.row = static_cast<int32_t>(batch.token_ids.size()), .slot = item.slot});
      batch.token_ids.push_back(0);
    } else {
      HADAL_CHECK(position >= sequence.prompt_len && position < static_cast<int64_t>(sequence.tokens.size()),
                  "request {} has no generated token at {}", item.request_id, position);
      batch.token_ids.push_back(sequence.tokens[position]);
    }
    batch.positions.push_back(static_cast<int32_t>(position));
    batch.slots.push_back(int64_t{slot.pages[position / kPageSize]} * kPageSize + position % kPageSize);
    if (speculates_) staged.next_ids.push_back(token_after(sequence, position));
    batch.decode_seq_idx.push_back(seq_idx);
    batch.decode_kv_len.push_back(static_cast<int32_t>(position + 1));
  }
}

void Staging::add_verify(const Slot& slot, const WorkItem& item, StagedStep& staged, StepRecord& record) {
  const Sequence& sequence = *slot.sequence;
  staged.verifies.push_back(
      {.sample = static_cast<int32_t>(staged.samples.size()),
       .seq_idx = static_cast<int32_t>(staged.batch.page_table.size() / staged.batch.page_table_stride),
       .max_rows = item.num_tokens,
       .end_position = sequence.prompt_len + sequence.request.sampling.max_new_tokens - 1,
       .most_keys = static_cast<int64_t>(slot.pages.size()) * kPageSize});
  const bool constrained = sequence.mask != nullptr;
  staged.samples.push_back({.slot = item.slot, .constrained = constrained});
  record.samples.push_back(slot.sequence);
  if (constrained) record.constrained.push_back(slot.sequence);
}

void Staging::add_sample(const Slot& slot, const WorkItem& item, StagedStep& staged, StepRecord& record) {
  const bool constrained = slot.sequence->mask != nullptr;
  ForwardBatch& batch = staged.batch;
  staged.samples.push_back({.slot = item.slot,
                            .logit_row = static_cast<int32_t>(batch.logit_rows.size()),
                            .position = item.begin + item.num_tokens,
                            .constrained = constrained});
  batch.logit_rows.push_back(static_cast<int32_t>(batch.token_ids.size()) - 1);
  record.samples.push_back(slot.sequence);
  if (constrained) record.constrained.push_back(slot.sequence);
}

}  // namespace hadal
