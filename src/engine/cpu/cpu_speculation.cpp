#include "engine/cpu/cpu_speculation.h"

#include <algorithm>
#include <array>
#include <bit>

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

// The record is written at the place of position `place`, which is `position` outside a tree.
void append_decode_row(ForwardBatch& batch, int32_t seq_idx, int64_t position, int64_t place,
                       uint64_t ancestors, int32_t token) {
  batch.slots.push_back(record_slot(batch, seq_idx, place));
  batch.token_ids.push_back(token);
  batch.positions.push_back(static_cast<int32_t>(position));
  batch.decode_seq_idx.push_back(seq_idx);
  batch.decode_kv_len.push_back(static_cast<int32_t>(position + 1));
  batch.decode_ancestors.push_back(ancestors);
}

// Appends the rows of a tree whose root is `token` at position n.
void append_tree(ForwardBatch& batch, int32_t seq_idx, int64_t n, int32_t token,
                 std::span<const DraftNode> drafts) {
  std::array<uint64_t, kMaxDraftNodes> ancestors;
  ancestors[0] = extended_mask(0, 0);
  append_decode_row(batch, seq_idx, n, n, ancestors[0], token);
  for (size_t i = 1; i <= drafts.size(); ++i) {
    const DraftNode& draft = drafts[i - 1];
    HADAL_CHECK(draft.parent >= 0 && draft.parent < static_cast<int32_t>(i), "draft {} comes after draft {}",
                i, draft.parent);
    ancestors[i] = extended_mask(ancestors[draft.parent], static_cast<int32_t>(i));
    append_decode_row(batch, seq_idx, n + std::popcount(ancestors[i]) - 1, n + static_cast<int64_t>(i),
                      ancestors[i], draft.token);
  }
}

// Returns the number of tokens that a verification has sampled.
int64_t num_sampled(const SampledToken& sampled) {
  return sampled.token < 0 ? 0 : 1 + std::ssize(sampled.further);
}

}  // namespace

CpuSpeculation::CpuSpeculation(HostRunner& runner, ThreadPool& pool, const DraftShape& shape)
    : runner_(runner),
      pool_(pool),
      shape_(shape),
      hidden_size_(runner.config().hidden_size),
      scratch_(static_cast<size_t>(pool.num_threads())) {
  HADAL_CHECK(runner.has_nextn(), "the NextN layer is not loaded");
}

void CpuSpeculation::expand(StagedStep& step, std::vector<CpuSlot>& slots) {
  for (const VerifyItem& item : step.verifies) {
    SampleSpec& spec = step.samples[item.sample];
    const CpuSlot& slot = slots[spec.slot];
    const int64_t room = slot.length == 0 ? 0 : item.end_position - (slot.length - 1);
    spec.num_rows = static_cast<int32_t>(std::clamp<int64_t>(room, 0, item.max_rows));
    spec.position = slot.length;
  }
  catch_up(step, slots);
  grow_trees(step, slots);
  ForwardBatch& batch = step.batch;
  batch.decode_ancestors.resize(batch.decode_seq_idx.size(), extended_mask(0, 0));
  for (size_t i = 0; i < step.verifies.size(); ++i) {
    const VerifyItem& item = step.verifies[i];
    SampleSpec& spec = step.samples[item.sample];
    CpuSlot& slot = slots[spec.slot];
    slot.drafts = growths_[i].tree.nodes();
    spec.logit_row = static_cast<int32_t>(batch.logit_rows.size());
    if (spec.num_rows == 0) continue;
    spec.num_rows = 1 + static_cast<int32_t>(slot.drafts.size());
    for (int32_t row = 0; row < spec.num_rows; ++row)
      batch.logit_rows.push_back(static_cast<int32_t>(batch.num_tokens()) + row);
    append_tree(batch, item.seq_idx, slot.length - 1, slot.last_token, slot.drafts);
  }
}

void CpuSpeculation::grow_trees(const StagedStep& step, std::vector<CpuSlot>& slots) {
  if (growths_.size() < step.verifies.size()) growths_.resize(step.verifies.size());
  for (size_t i = 0; i < step.verifies.size(); ++i) {
    const SampleSpec& spec = step.samples[step.verifies[i].sample];
    Growth& growth = growths_[i];
    const int64_t num_drafts = std::max(spec.num_rows - 1, 0);
    growth.tree.begin(shape_, num_drafts);
    growth.hidden.resize(static_cast<size_t>(num_drafts * hidden_size_));
    if (num_drafts > 0) growth.tree.add_children(-1, slots[spec.slot].first_drafts);
  }
  const auto hidden_of = [&](Growth& growth, int32_t draft) {
    const int64_t begin = growth.tree.draft(draft).record * hidden_size_;
    return std::span(growth.hidden).subspan(static_cast<size_t>(begin), static_cast<size_t>(hidden_size_));
  };
  // Children are NextN's guesses after a draft, made with the hidden state from which that draft came.
  while (true) {
    begin_batch(step);
    for (size_t i = 0; i < step.verifies.size(); ++i) {
      const VerifyItem& item = step.verifies[i];
      CpuSlot& slot = slots[step.samples[item.sample].slot];
      Growth& growth = growths_[i];
      const std::span<const int32_t> expanded = growth.tree.expand();
      growth.expanded.assign(expanded.begin(), expanded.end());
      for (const int32_t index : growth.expanded) {
        const DraftTreeBuilder::Draft& draft = growth.tree.draft(index);
        const std::span<const float> hidden =
            draft.parent < 0 ? std::span<const float>(slot.hidden) : hidden_of(growth, draft.parent);
        append_decode_row(batch_, item.seq_idx, slot.length - 2 + draft.depth, slot.length - 1 + draft.record,
                          draft.ancestors, draft.token);
        hidden_.insert(hidden_.end(), hidden.begin(), hidden.end());
        add_guess(slot, slot.length + draft.depth);
      }
    }
    if (batch_.num_tokens() == 0) return;
    run_batch();
    auto guess = guesses_.begin();
    for (size_t i = 0; i < step.verifies.size(); ++i) {
      Growth& growth = growths_[i];
      for (const int32_t index : growth.expanded) {
        std::copy(guess->hidden.begin(), guess->hidden.end(), hidden_of(growth, index).begin());
        growth.tree.add_children(index, guess->drafts);
        ++guess;
      }
    }
  }
}

void CpuSpeculation::commit(const StagedStep& step, const StepOutput& output) {
  moves_.clear();
  for (const VerifyItem& item : step.verifies) {
    const int64_t root = step.samples[item.sample].position - 1;
    int64_t depth = 0;
    for (const ChosenToken& chosen : output.samples[item.sample].further) {
      ++depth;
      if (chosen.row == depth) continue;
      moves_.push_back({.source = record_slot(step.batch, item.seq_idx, root + chosen.row),
                        .target = record_slot(step.batch, item.seq_idx, root + depth)});
    }
  }
  runner_.move_records(moves_);
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
  guess_first_drafts();
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
  batch_.decode_ancestors.assign(num_decode, extended_mask(0, 0));
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
    guesses_.push_back({.slot = &slot, .position = slot.length, .drafts = {}, .hidden = {}});
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
    const int64_t root_row = target.logit_rows[spec.logit_row];
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = root_row + (i == 0 ? 0 : sampled.further[i - 1].row);
      add_row(item.seq_idx, spec.position - 1 + i, i == 0 ? sampled.token : sampled.further[i - 1].token,
              hidden.subspan(row * hidden_size_, hidden_size_));
    }
    slot.length = count == 0 ? 0 : slot.length + count;
    if (count > 0) add_guess(slot, slot.length);
  }
  guess_first_drafts();
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
  append_decode_row(batch_, seq_idx, position, position, extended_mask(0, 0), token);
  hidden_.insert(hidden_.end(), hidden.begin(), hidden.end());
}

void CpuSpeculation::add_guess(CpuSlot& slot, int64_t position) {
  batch_.logit_rows.push_back(static_cast<int32_t>(batch_.num_tokens()) - 1);
  guesses_.push_back({.slot = &slot, .position = position, .drafts = {}, .hidden = {}});
}

void CpuSpeculation::guess_first_drafts() {
  if (batch_.num_tokens() == 0) return;
  run_batch();
  for (Guess& guess : guesses_) {
    guess.slot->first_drafts = std::move(guess.drafts);
    guess.slot->hidden.assign(guess.hidden.begin(), guess.hidden.end());
  }
}

// Drafts are chosen as their token will be, with the request's parameters and the same noise (base/gumbel.h).
// So a draft and the token agree more often than they would if the drafts were the most probable tokens. A
// chain needs no shares. There are no drafts after a row with NaN.
void CpuSpeculation::run_batch() {
  const ForwardRows rows = runner_.forward_nextn(batch_, hidden_);
  const int64_t vocab_size = runner_.config().vocab_size;
  pool_.parallel_for(std::ssize(guesses_), 1, [&](int64_t begin, int64_t end, int thread_idx) {
    for (int64_t i = begin; i < end; ++i) {
      Guess& guess = guesses_[i];
      guess.hidden = rows.hidden.subspan(i * hidden_size_, hidden_size_);
      const std::span<const float> logits = rows.logits.subspan(i * vocab_size, vocab_size);
      if (has_nan(logits)) continue;
      const SlotStart& start = guess.slot->start;
      SamplerScratch& scratch = scratch_[thread_idx];
      if (shape_.topk == 1) {
        guess.drafts = {{.token = sample_token(logits, start.sampling, start.history, start.eos_token_ids, {},
                                               start.seed, guess.position, scratch)}};
      } else {
        guess.drafts = choose_drafts(logits, start.sampling, start.history, start.eos_token_ids, start.seed,
                                     guess.position, shape_.topk, scratch);
      }
    }
  });
}

}  // namespace hadal
