#include "engine/cuda/step_layout.h"

#include <algorithm>

#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/mla/mla.h"
#include "kernels/cuda/sampling/sampling.h"

namespace hadal {

StepSizes StepSizes::decode(int64_t rows, int64_t copies) {
  return {.tokens = rows,
          .decode_rows = rows,
          .feeds = rows,
          .samples = rows,
          .constrained = rows,
          .page_updates = rows,
          .copies = copies};
}

StepLayout layout_step(const StepSizes& sizes) {
  constexpr size_t kAlignment = 16;
  StepLayout layout;
  const auto place = [&layout](int64_t count, size_t element_bytes) {
    const size_t at = layout.bytes;
    const size_t end = at + static_cast<size_t>(count) * element_bytes;
    layout.bytes = (end + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  };
  layout.num_valid = place(1, sizeof(int32_t));
  layout.token_ids = place(sizes.tokens, sizeof(int32_t));
  layout.positions = place(sizes.tokens, sizeof(int32_t));
  layout.slots = place(sizes.tokens, sizeof(int64_t));
  layout.decode_seq_idx = place(sizes.decode_rows, sizeof(int32_t));
  layout.decode_kv_len = place(sizes.decode_rows, sizeof(int32_t));
  layout.logit_rows = place(sizes.logit_rows, sizeof(int32_t));
  layout.feed_rows = place(sizes.feeds, sizeof(int32_t));
  layout.feed_slots = place(sizes.feeds, sizeof(int32_t));
  layout.samples = place(sizes.samples, sizeof(cuda::SampleRow));
  layout.constrained = place(sizes.constrained, sizeof(cuda::SampleRow));
  layout.page_places = place(sizes.page_updates, sizeof(int32_t));
  layout.page_idx = place(sizes.page_updates, sizeof(int32_t));
  layout.page_values = place(sizes.page_updates, sizeof(int32_t));
  layout.score_rows = place(sizes.scores, sizeof(int32_t));
  layout.score_ids = place(sizes.scores, sizeof(int32_t));
  layout.score_top = place(sizes.scores, sizeof(int32_t));
  layout.key_runs = place(sizes.key_runs, sizeof(cuda::KeyRun));
  layout.segment_runs = place(sizes.segment_runs, sizeof(cuda::PrefillSegmentRun));
  layout.absorbed_rows = place(sizes.absorbed_rows, sizeof(int32_t));
  layout.absorbed_seq_idx = place(sizes.absorbed_groups, sizeof(int32_t));
  layout.absorbed_kv_len = place(sizes.absorbed_groups, sizeof(int32_t));
  layout.selecting_seq_idx = place(sizes.selecting_rows, sizeof(int32_t));
  layout.selecting_kv_len = place(sizes.selecting_rows, sizeof(int32_t));
  layout.copies = place(sizes.copies, sizeof(cuda::PageCopyEntry));
  return layout;
}

bool decode_settled(const ForwardBatch& batch) {
  if (batch.num_prefill_tokens > 0) return false;
  std::vector<int64_t> written = batch.slots;
  std::sort(written.begin(), written.end());
  // A request's tokens of a step are consecutive. So if an earlier key of a row belongs to this step, the key
  // directly before the row belongs to it, too.
  for (size_t i = 0; i < batch.decode_seq_idx.size(); ++i) {
    const int64_t before = int64_t{batch.decode_kv_len[i]} - 2;
    if (before < 0) continue;
    const int64_t page =
        batch.page_table[batch.decode_seq_idx[i] * batch.page_table_stride + before / kPageSize];
    if (std::binary_search(written.begin(), written.end(), page * kPageSize + before % kPageSize))
      return false;
  }
  return true;
}

}  // namespace hadal
