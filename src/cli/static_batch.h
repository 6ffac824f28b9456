// Makes the ForwardBatches of sequences whose pages never change: sequence s owns the pages
// [s · pages_per_sequence, (s + 1) · pages_per_sequence). Commands use it to run the model without the
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

  // Returns a step with the prompt tokens `ids` ([num_sequences, count], row-major) of the sequences from
  // first_sequence on, at the positions from `begin` on. The step computes logits for all rows, or for the
  // last row of each sequence.
  const ForwardBatch& prefill(std::span<const int32_t> ids, int64_t begin, bool all_logits,
                              int64_t first_sequence, int64_t num_sequences);
  // Returns the same kind of step for all sequences.
  const ForwardBatch& prefill(std::span<const int32_t> ids, int64_t begin, bool all_logits) {
    return prefill(ids, begin, all_logits, 0, num_sequences_);
  }

  // Returns a step with one token of every sequence at `position`, and logits for all of them.
  const ForwardBatch& decode(std::span<const int32_t> ids, int64_t position);

  // Returns a step with the pages of all sequences and no row, for requests that verify drafts.
  const ForwardBatch& pages_only();

 private:
  void start();
  void add_row(int64_t sequence, int32_t id, int64_t position);

  int64_t num_sequences_;
  int64_t pages_per_sequence_;
  ForwardBatch batch_;
};

}  // namespace hadal::cli
