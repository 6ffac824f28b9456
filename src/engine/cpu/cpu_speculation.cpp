#include "engine/cpu/cpu_speculation.h"

#include <algorithm>

#include "base/check.h"

namespace hadal {
namespace {

int64_t record_slot(const ForwardBatch& batch, int32_t seq_idx, int64_t position) {
  const int64_t block = position / kPageSize;
  HADAL_CHECK_LT(block, batch.page_table_stride);
  const int32_t page = batch.page_table[static_cast<size_t>(seq_idx * batch.page_table_stride + block)];
  HADAL_CHECK(page >= 0, "a draft at position {} has no page", position);
  return int64_t{page} * kPageSize + position % kPageSize;
}

void append_decode_row(ForwardBatch& batch, int32_t seq_idx, int64_t position, int32_t token) {
  batch.slots.push_back(record_slot(batch, seq_idx, position));
  batch.token_ids.push_back(token);
  batch.positions.push_back(static_cast<int32_t>(position));
  batch.decode_seq_idx.push_back(seq_idx);
  batch.decode_kv_len.push_back(static_cast<int32_t>(position + 1));
}

// Returns the number of tokens that a verification has sampled.
int64_t num_sampled(const SampledToken& sampled) {
  return sampled.token < 0 ? 0 : 1 + std::ssize(sampled.further);
}

}  // namespace

CpuSpeculation::CpuSpeculation(HostRunner& runner, ThreadPool& pool)
    : runner_(runner),
      pool_(pool),
      hidden_size_(runner.config().hidden_size),
      scratch_(static_cast<size_t>(pool.num_threads())) {
  HADAL_CHECK(runner.has_nextn(), "the NextN layer is not loaded");
}

void CpuSpeculation::expand(StagedStep& step, std::vector<CpuSlot>& slots) {
  int32_t most_rows = 0;
  for (const VerifyItem& item : step.verifies) {
    SampleSpec& spec = step.samples[item.sample];
    CpuSlot& slot = slots[spec.slot];
    const int64_t room = slot.length == 0 ? 0 : item.end_position - (slot.length - 1);
    spec.num_rows = static_cast<int32_t>(std::clamp<int64_t>(room, 0, item.max_rows));
    spec.position = slot.length;
    most_rows = std::max(most_rows, spec.num_rows);
  }
  catch_up(step, slots);
  for (const VerifyItem& item : step.verifies) {
    const SampleSpec& spec = step.samples[item.sample];
    CpuSlot& slot = slots[spec.slot];
    slot.drafts.clear();
    if (spec.num_rows > 1) slot.drafts.push_back(slot.draft);
  }
  // Each further draft is NextN's guess after its previous guess, made with NextN's own hidden state.
  for (int32_t depth = 2; depth < most_rows; ++depth) {
    begin_batch(step);
    for (const VerifyItem& item : step.verifies) {
      const SampleSpec& spec = step.samples[item.sample];
      if (spec.num_rows <= depth) continue;
      CpuSlot& slot = slots[spec.slot];
      add_row(item.seq_idx, slot.length + depth - 3, slot.drafts.back(), slot.hidden);
      add_guess(slot, slot.length + depth - 1);
    }
    run_batch();
    for (const Guess& guess : guesses_) guess.slot->drafts.push_back(guess.slot->draft);
  }
  ForwardBatch& batch = step.batch;
  for (const VerifyItem& item : step.verifies) {
    SampleSpec& spec = step.samples[item.sample];
    const CpuSlot& slot = slots[spec.slot];
    spec.logit_row = static_cast<int32_t>(batch.logit_rows.size());
    for (int32_t i = 0; i < spec.num_rows; ++i) {
      batch.logit_rows.push_back(static_cast<int32_t>(batch.token_ids.size()));
      append_decode_row(batch, item.seq_idx, slot.length - 1 + i,
                        i == 0 ? slot.last_token : slot.drafts[i - 1]);
    }
  }
}

void CpuSpeculation::catch_up(const StagedStep& step, std::vector<CpuSlot>& slots) {
  begin_batch(step);
  for (const VerifyItem& item : step.verifies) {
    const SampleSpec& spec = step.samples[item.sample];
    CpuSlot& slot = slots[spec.slot];
    if (spec.num_rows <= 1 || slot.num_waiting == 0) continue;
    for (int64_t position = slot.length - 1 - slot.num_waiting; position < slot.length - 1; ++position) {
      const int64_t i = position % kMaxWaitingRows;
      add_row(item.seq_idx, position, slot.waiting_next[i],
              std::span(slot.waiting_hidden).subspan(i * hidden_size_, hidden_size_));
    }
    add_guess(slot, slot.length);
    slot.num_waiting = 0;
  }
  if (batch_.num_tokens() > 0) run_batch();
}

void CpuSpeculation::keep(CpuSlot& slot, int32_t next, std::span<const float> hidden) const {
  slot.waiting_hidden.resize(kMaxWaitingRows * hidden_size_);
  slot.waiting_next.resize(kMaxWaitingRows);
  const int64_t i = (slot.length - 1) % kMaxWaitingRows;
  slot.waiting_next[i] = next;
  std::copy(hidden.begin(), hidden.end(), slot.waiting_hidden.begin() + i * hidden_size_);
  slot.num_waiting = std::min(slot.num_waiting + 1, kMaxWaitingRows);
}

void CpuSpeculation::follow(const StagedStep& step, std::span<const float> hidden, StepOutput& output,
                            std::vector<CpuSlot>& slots) {
  const ForwardBatch& target = step.batch;
  begin_batch(step);
  // The staged rows come first, and keep their order.
  const size_t num_staged = step.next_ids.size();
  batch_.segments = target.segments;
  batch_.num_prefill_tokens = target.num_prefill_tokens;
  batch_.token_ids = step.next_ids;
  batch_.positions.assign(target.positions.begin(), target.positions.begin() + num_staged);
  batch_.slots.assign(target.slots.begin(), target.slots.begin() + num_staged);
  const size_t num_decode = num_staged - static_cast<size_t>(target.num_prefill_tokens);
  batch_.decode_seq_idx.assign(target.decode_seq_idx.begin(), target.decode_seq_idx.begin() + num_decode);
  batch_.decode_kv_len.assign(target.decode_kv_len.begin(), target.decode_kv_len.begin() + num_decode);
  hidden_.assign(hidden.begin(), hidden.begin() + num_staged * hidden_size_);

  std::vector<bool> verifies(step.samples.size());
  for (const VerifyItem& item : step.verifies) verifies[item.sample] = true;
  for (size_t i = 0; i < step.samples.size(); ++i) {
    if (verifies[i]) continue;
    const SampleSpec& spec = step.samples[i];
    CpuSlot& slot = slots[spec.slot];
    const int32_t token = output.samples[i].token;
    slot.length = token < 0 ? 0 : spec.position + 1;
    slot.num_waiting = 0;
    if (token < 0) continue;
    const int32_t row = target.logit_rows[spec.logit_row];
    batch_.token_ids[row] = token;
    batch_.logit_rows.push_back(row);
    guesses_.push_back({.slot = &slot, .position = slot.length});
  }
  // The token ids that are still −1 are of rows after which nothing was sampled; their records are not used.
  std::replace(batch_.token_ids.begin(), batch_.token_ids.end(), -1, 0);

  for (const VerifyItem& item : step.verifies) {
    const SampleSpec& spec = step.samples[item.sample];
    CpuSlot& slot = slots[spec.slot];
    SampledToken& sampled = output.samples[item.sample];
    sampled.verified = spec.num_rows > 0;
    sampled.num_drafts = std::max(spec.num_rows - 1, 0);
    const int64_t count = num_sampled(sampled);
    if (spec.num_rows <= 1) {
      const int64_t row = spec.num_rows == 0 ? 0 : target.logit_rows[spec.logit_row];
      if (count > 0) keep(slot, sampled.token, hidden.subspan(row * hidden_size_, hidden_size_));
      slot.length = count == 0 ? 0 : slot.length + 1;
      continue;
    }
    for (int64_t i = 0; i < count; ++i) {
      const auto row = static_cast<int64_t>(target.logit_rows[spec.logit_row]) + i;
      add_row(item.seq_idx, spec.position - 1 + i, i == 0 ? sampled.token : sampled.further[i - 1].token,
              hidden.subspan(row * hidden_size_, hidden_size_));
    }
    slot.length = count == 0 ? 0 : slot.length + count;
    if (count > 0) add_guess(slot, slot.length);
  }
  if (batch_.num_tokens() > 0) run_batch();
}

void CpuSpeculation::begin_batch(const StagedStep& step) {
  batch_.clear();
  hidden_.clear();
  guesses_.clear();
  batch_.page_table = step.batch.page_table;
  batch_.page_table_stride = step.batch.page_table_stride;
}

void CpuSpeculation::add_row(int32_t seq_idx, int64_t position, int32_t token,
                             std::span<const float> hidden) {
  append_decode_row(batch_, seq_idx, position, token);
  hidden_.insert(hidden_.end(), hidden.begin(), hidden.end());
}

void CpuSpeculation::add_guess(CpuSlot& slot, int64_t position) {
  batch_.logit_rows.push_back(static_cast<int32_t>(batch_.num_tokens()) - 1);
  guesses_.push_back({.slot = &slot, .position = position});
}

// A draft is chosen as its token will be, with the request's parameters and the same noise (base/gumbel.h).
// So the draft and the token agree more often than they would if the draft were the most probable token.
void CpuSpeculation::run_batch() {
  const ForwardRows rows = runner_.forward_nextn(batch_, hidden_);
  const int64_t vocab_size = runner_.config().vocab_size;
  pool_.parallel_for(std::ssize(guesses_), 1, [&](int64_t begin, int64_t end, int thread_idx) {
    for (int64_t i = begin; i < end; ++i) {
      const Guess& guess = guesses_[i];
      CpuSlot& slot = *guess.slot;
      const std::span<const float> logits = rows.logits.subspan(i * vocab_size, vocab_size);
      const std::span<const float> hidden = rows.hidden.subspan(i * hidden_size_, hidden_size_);
      const SlotStart& start = slot.start;
      slot.draft = has_nan(logits) ? 0
                                   : sample_token(logits, start.sampling, start.history, start.eos_token_ids,
                                                  {}, start.seed, guess.position, scratch_[thread_idx]);
      slot.hidden.assign(hidden.begin(), hidden.end());
    }
  });
}

}  // namespace hadal
