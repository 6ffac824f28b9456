// ForwardBatches of sequences whose pages are dealt out once: sequence s owns the pages
// [s · pages_per_sequence, (s + 1) · pages_per_sequence). For commands that drive the model without the
// engine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model.h"

namespace hadal::cli {

class StaticBatch {
 public:
  StaticBatch(int64_t num_sequences, int64_t max_tokens);

  int64_t num_pages() const { return num_sequences_ * pages_per_sequence_; }

  // Prompt tokens `ids` of `num_sequences` sequences from first_sequence on ([num_sequences, count],
  // row-major) at positions from `begin` on. logits: of all rows, or of each sequence's last one.
  const ForwardBatch& prefill(std::span<const int32_t> ids, int64_t begin, bool all_logits,
                              int64_t first_sequence, int64_t num_sequences);
  // The same of every sequence.
  const ForwardBatch& prefill(std::span<const int32_t> ids, int64_t begin, bool all_logits) {
    return prefill(ids, begin, all_logits, 0, num_sequences_);
  }

  // One token of every sequence at `position`; logits of all of them.
  const ForwardBatch& decode(std::span<const int32_t> ids, int64_t position);

 private:
  void start();
  void add_row(int64_t sequence, int32_t id, int64_t position);

  int64_t num_sequences_;
  int64_t pages_per_sequence_;
  ForwardBatch batch_;
};

}  // namespace hadal::cli
