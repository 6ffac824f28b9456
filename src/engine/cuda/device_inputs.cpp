#include "engine/cuda/device_inputs.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"

namespace hadal {
namespace {

// Returns the sizes of the arrays of the largest step: every row may decode, yield logits and score, and long
// sequences of keys are split into passes.
StepSizes most(const DeviceInputLimits& limits) {
  const int64_t keys = limits.pages_per_sequence * kPageSize;
  const int64_t parts = limits.paths.masks() ? 2 : 1;  // of a segment, which attend in passes of their own
  const int64_t runs = parts * (limits.max_seqs * (keys / kMaxPrefillKeys + 2) + 2);
  return {.tokens = limits.max_tokens,
          .decode_rows = limits.max_tokens,
          .logit_rows = limits.max_tokens,
          .feeds = limits.max_tokens,
          .samples = limits.max_tokens,
          .constrained = limits.max_tokens,
          .page_updates = limits.max_rows,
          .scores = limits.max_tokens,
          .key_runs = runs,
          .segment_runs = runs,
          .absorbed_rows = limits.max_tokens + limits.max_seqs * absorbed_group_rows(1),
          .absorbed_groups = limits.max_tokens,
          .selecting_rows = limits.paths.index_topk > 0 ? limits.max_tokens : 0,
          .copies = 2 * limits.max_seqs};
}

size_t table_bytes(const DeviceInputLimits& limits) {
  return static_cast<size_t>(limits.max_seqs * limits.pages_per_sequence) * sizeof(int32_t);
}

template <typename T>
T* array_at(std::byte* block, size_t offset) {
  return reinterpret_cast<T*>(block + offset);
}

template <typename T>
void put(std::byte* block, size_t offset, const std::vector<T>& values) {
  if (!values.empty()) std::memcpy(block + offset, values.data(), values.size() * sizeof(T));
}

}  // namespace

DeviceInputs::DeviceInputs(const DeviceInputLimits& limits)
    : limits_(limits),
      block_(layout_step(most(limits)).bytes),
      table_(table_bytes(limits)),
      dense_table_(static_cast<size_t>(limits.max_table_entries) * sizeof(int32_t)),
      mirror_(limits.max_seqs, limits.pages_per_sequence) {
  CudaStream stream;
  fill_device(table_.data(), 0, table_.size(), stream.handle());
  stream.synchronize();
}

int64_t DeviceInputs::device_bytes(const DeviceInputLimits& limits) {
  return static_cast<int64_t>(layout_step(most(limits)).bytes + table_bytes(limits)) +
         limits.max_table_entries * static_cast<int64_t>(sizeof(int32_t));
}

StepView DeviceInputs::view(const StepLayout& layout, const StepSizes& sizes) const {
  std::byte* const block = block_.data();
  StepView view;
  view.step.num_tokens = sizes.tokens;
  // Kernels are chosen for usual lengths, because in long-context models few sequences come near the limit.
  view.step.most_keys = std::min(limits_.pages_per_sequence * kPageSize, cuda::kMlaUsualKeys);
  view.step.token_ids = array_at<int32_t>(block, layout.token_ids);
  view.step.positions = array_at<int32_t>(block, layout.positions);
  view.step.slots = array_at<int64_t>(block, layout.slots);
  view.step.decode_seq_idx = array_at<int32_t>(block, layout.decode_seq_idx);
  view.step.decode_kv_len = array_at<int32_t>(block, layout.decode_kv_len);
  view.step.logit_rows = array_at<int32_t>(block, layout.logit_rows);
  view.step.num_logit_rows = sizes.logit_rows;
  view.step.key_runs = array_at<cuda::KeyRun>(block, layout.key_runs);
  view.step.segment_runs = array_at<cuda::PrefillSegmentRun>(block, layout.segment_runs);
  view.step.absorbed_rows = array_at<int32_t>(block, layout.absorbed_rows);
  view.step.absorbed_seq_idx = array_at<int32_t>(block, layout.absorbed_seq_idx);
  view.step.absorbed_kv_len = array_at<int32_t>(block, layout.absorbed_kv_len);
  view.step.selecting_seq_idx = array_at<int32_t>(block, layout.selecting_seq_idx);
  view.step.selecting_kv_len = array_at<int32_t>(block, layout.selecting_kv_len);
  view.feeds = {.rows = array_at<int32_t>(block, layout.feed_rows),
                .slots = array_at<int32_t>(block, layout.feed_slots),
                .ids = array_at<int32_t>(block, layout.token_ids),
                .num_feeds = sizes.feeds};
  view.samples = array_at<cuda::SampleRow>(block, layout.samples);
  view.num_samples = static_cast<int>(sizes.samples);
  view.constrained = array_at<cuda::SampleRow>(block, layout.constrained);
  view.num_constrained = static_cast<int>(sizes.constrained);
  view.score_rows = array_at<int32_t>(block, layout.score_rows);
  view.score_ids = array_at<int32_t>(block, layout.score_ids);
  view.score_top = array_at<int32_t>(block, layout.score_top);
  view.num_scores = static_cast<int>(sizes.scores);
  view.copies = array_at<cuda::PageCopyEntry>(block, layout.copies);
  view.chain_rows = {.token_ids = array_at<int32_t>(block, layout.token_ids),
                     .positions = array_at<int32_t>(block, layout.positions),
                     .slots = array_at<int64_t>(block, layout.slots),
                     .kv_len = array_at<int32_t>(block, layout.decode_kv_len)};
  return view;
}

StepView DeviceInputs::decode_view(int64_t rows) const {
  const StepSizes sizes = StepSizes::decode(rows, 0);
  const StepLayout layout = layout_step(sizes);
  StepView decode = view(layout, sizes);
  decode.step.num_valid = array_at<int32_t>(block_.data(), layout.num_valid);
  decode.step.page_table = table_.as<int32_t>();
  decode.step.page_table_stride = limits_.pages_per_sequence;
  decode.step.logit_rows = nullptr;  // row i of the batch
  decode.step.num_logit_rows = rows;
  return decode;
}

void DeviceInputs::write(const StagedStep& step, const std::vector<int32_t>& score_top, bool padded,
                         const StepSizes& sizes, const StepLayout& layout, std::byte* block) const {
  const ForwardBatch& batch = step.batch;
  *array_at<int32_t>(block, layout.num_valid) =
      static_cast<int32_t>(std::max<int64_t>(batch.num_tokens(), 1));
  if (padded) {
    std::memset(block + layout.token_ids, 0, layout.slots - layout.token_ids);  // tokens and positions
    std::fill_n(array_at<int64_t>(block, layout.slots), sizes.tokens, int64_t{-1});
    std::memset(block + layout.decode_seq_idx, 0, layout.logit_rows - layout.decode_seq_idx);
    std::memset(block + layout.feed_rows, 0, static_cast<size_t>(sizes.feeds) * sizeof(int32_t));
    std::fill_n(array_at<int32_t>(block, layout.feed_slots), sizes.feeds, -1);
    std::fill_n(array_at<cuda::SampleRow>(block, layout.samples), sizes.samples, cuda::SampleRow{});
    std::fill_n(array_at<cuda::SampleRow>(block, layout.constrained), sizes.constrained, cuda::SampleRow{});
  } else {
    put(block, layout.logit_rows, batch.logit_rows);
  }
  put(block, layout.token_ids, batch.token_ids);
  put(block, layout.positions, batch.positions);
  put(block, layout.slots, batch.slots);
  put(block, layout.decode_seq_idx, batch.decode_seq_idx);
  put(block, layout.decode_kv_len, batch.decode_kv_len);
  for (size_t i = 0; i < step.feeds.size(); ++i) {
    array_at<int32_t>(block, layout.feed_rows)[i] = step.feeds[i].row;
    array_at<int32_t>(block, layout.feed_slots)[i] = step.feeds[i].slot;
  }
  auto* sample = array_at<cuda::SampleRow>(block, layout.samples);
  auto* constrained = array_at<cuda::SampleRow>(block, layout.constrained);
  int32_t mask_row = 0;
  for (const SampleSpec& spec : step.samples) {
    const cuda::SampleRow row{.slot = spec.slot,
                              .logit_row = padded ? batch.logit_rows[spec.logit_row] : spec.logit_row,
                              .position = spec.position,
                              .mask_row = spec.constrained ? mask_row++ : -1};
    *(spec.constrained ? constrained++ : sample++) = row;
  }
  for (size_t i = 0; i < step.scores.size(); ++i) {
    array_at<int32_t>(block, layout.score_rows)[i] = step.scores[i].logit_row;
    array_at<int32_t>(block, layout.score_ids)[i] = step.scores[i].token_id;
    array_at<int32_t>(block, layout.score_top)[i] = score_top[i];
  }
  put(block, layout.key_runs, plan_.key_runs);
  put(block, layout.segment_runs, plan_.segment_runs);
  put(block, layout.absorbed_rows, plan_.absorbed_rows);
  put(block, layout.absorbed_seq_idx, plan_.absorbed_seq_idx);
  put(block, layout.absorbed_kv_len, plan_.absorbed_kv_len);
  put(block, layout.selecting_seq_idx, plan_.selecting_seq_idx);
  put(block, layout.selecting_kv_len, plan_.selecting_kv_len);
  auto* copy = array_at<cuda::PageCopyEntry>(block, layout.copies);
  for (const PageCopy& from : step.copies) {
    *copy++ = {.source = from.source, .target = from.target, .num_rows = from.num_rows};
  }
}

// Writes page table entries as a scatter, as for tokens: table[places[i]] = values[i].
void DeviceInputs::write_page_updates(const StepLayout& layout, std::byte* block) const {
  put(block, layout.page_places, mirror_.places());
  put(block, layout.page_values, mirror_.values());
  auto* idx = array_at<int32_t>(block, layout.page_idx);
  for (size_t i = 0; i < mirror_.places().size(); ++i) idx[i] = static_cast<int32_t>(i);
}

StepView DeviceInputs::upload(const StagedStep& step, const std::vector<int32_t>& score_top, int64_t rows,
                              int step_idx, StreamHandle stream) {
  const ForwardBatch& batch = step.batch;
  const bool padded = rows > 0;
  HADAL_CHECK(
      !padded || (batch.num_prefill_tokens == 0 && batch.num_tokens() <= rows && rows <= limits_.max_rows),
      "{} rows, {} of them of prompts, padded to {} of at most {}", batch.num_tokens(),
      batch.num_prefill_tokens, rows, limits_.max_rows);
  HADAL_CHECK_LE(batch.num_tokens(), limits_.max_tokens);
  plan_.clear();
  if (batch.num_prefill_tokens > 0) plan_prefill(batch.segments, kMaxPrefillKeys, limits_.paths, plan_);

  const auto num_copies = static_cast<int64_t>(step.copies.size());
  StepSizes sizes = StepSizes::decode(rows, num_copies);
  const auto num_constrained = std::count_if(step.samples.begin(), step.samples.end(),
                                             [](const SampleSpec& spec) { return spec.constrained; });
  if (!padded) {
    sizes = {.tokens = batch.num_tokens(),
             .decode_rows = static_cast<int64_t>(batch.decode_seq_idx.size()),
             .logit_rows = static_cast<int64_t>(batch.logit_rows.size()),
             .feeds = static_cast<int64_t>(step.feeds.size()),
             .samples = static_cast<int64_t>(step.samples.size()) - num_constrained,
             .constrained = num_constrained,
             .scores = static_cast<int64_t>(step.scores.size()),
             .key_runs = static_cast<int64_t>(plan_.key_runs.size()),
             .segment_runs = static_cast<int64_t>(plan_.segment_runs.size()),
             .absorbed_rows = static_cast<int64_t>(plan_.absorbed_rows.size()),
             .absorbed_groups = static_cast<int64_t>(plan_.absorbed_kv_len.size()),
             .selecting_rows = static_cast<int64_t>(plan_.selecting_kv_len.size()),
             .copies = num_copies};
  }
  const StepLayout layout = layout_step(sizes);
  const std::vector<int32_t>& table = batch.page_table;
  const int64_t stride = batch.page_table_stride;
  HADAL_CHECK(layout.bytes <= block_.size(), "the step's inputs need {} bytes, the block has {}",
              layout.bytes, block_.size());
  HADAL_CHECK_LE(std::ssize(table), limits_.max_table_entries);
  // Otherwise, when the step has other requests than the previous one, whole tables are copied.
  const bool few_changes = padded && mirror_.update(table, stride, static_cast<size_t>(sizes.page_updates));
  const size_t table_bytes = few_changes ? 0 : table.size() * sizeof(int32_t);
  std::byte* const staged = staging_.block(step_idx, layout.bytes + table_bytes);
  write(step, score_top, padded, sizes, layout, staged);
  if (few_changes) {
    write_page_updates(layout, staged);
  } else {
    put(staged, layout.bytes, table);
  }
  copy_to_device(block_.data(), staged, layout.bytes, stream);
  if (!padded) {
    copy_to_device(dense_table_.data(), staged + layout.bytes, table_bytes, stream);
  } else if (!few_changes) {
    const size_t row_bytes = static_cast<size_t>(stride) * sizeof(int32_t);
    copy_to_device_2d(table_.data(), static_cast<size_t>(limits_.pages_per_sequence) * sizeof(int32_t),
                      staged + layout.bytes, row_bytes, row_bytes, table.size() / static_cast<size_t>(stride),
                      stream);
  }

  StepView uploaded = padded ? decode_view(rows) : view(layout, sizes);
  if (few_changes) {
    uploaded.page_updates = {.rows = array_at<int32_t>(block_.data(), layout.page_places),
                             .slots = array_at<int32_t>(block_.data(), layout.page_idx),
                             .last_token = array_at<int32_t>(block_.data(), layout.page_values),
                             .ids = table_.as<int32_t>(),
                             .num_feeds = std::ssize(mirror_.places())};
  }
  uploaded.step.decode_keys =
      std::accumulate(batch.decode_kv_len.begin(), batch.decode_kv_len.end(), int64_t{0});
  // The rows of a verification are keys of the rows after them.
  uploaded.step.decode_settled = step.verifies.empty() && decode_settled(batch);
  uploaded.num_constrained = static_cast<int>(num_constrained);
  uploaded.copies = array_at<cuda::PageCopyEntry>(block_.data(), layout.copies);
  if (!padded) {
    uploaded.step.num_prefill_tokens = batch.num_prefill_tokens;
    uploaded.chain_rows.num_prefill = batch.num_prefill_tokens;
    uploaded.step.prefill = batch.num_prefill_tokens > 0 ? &plan_ : nullptr;
    uploaded.step.page_table = dense_table_.as<int32_t>();
    uploaded.step.page_table_stride = stride;
  }
  return uploaded;
}

}  // namespace hadal
