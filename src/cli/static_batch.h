// Makes the ForwardBatches of sequences whose pages never change: each sequence owns consecutive pages, and
// the pages of sequence s come before those of sequence s + 1. Commands use it to run the model without the
// engine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model.h"

namespace hadal::cli {

class StaticBatch {
 public:
  // Sequence s has pages for max_tokens[s] tokens.
  explicit StaticBatch(std::span<const int64_t> max_tokens);
  StaticBatch(int64_t num_sequences, int64_t max_tokens);

  int64_t num_sequences() const { return static_cast<int64_t>(first_page_.size()) - 1; }
  int64_t num_pages() const { return first_page_.back(); }

  // Returns a step with the prompt tokens `ids` ([num_sequences, count], row-major) of the sequences from
  // first_sequence on, at the positions from `begin` on. The step computes logits for all rows, or for the
  // last row of each sequence.
  const ForwardBatch& prefill(std::span<const int32_t> ids, int64_t begin, bool all_logits,
                              int64_t first_sequence, int64_t num_sequences);
  // Returns the same kind of step for all sequences.
  const ForwardBatch& prefill(std::span<const int32_t> ids, int64_t begin, bool all_logits) {
    return prefill(ids, begin, all_logits, 0, num_sequences());
  }

  // Returns a step with one token of every sequence, and logits for all of them. Sequence s has its token at
  // positions[s].
  const ForwardBatch& decode(std::span<const int32_t> ids, std::span<const int64_t> positions);
  // Returns the same kind of step with all tokens at one position.
  const ForwardBatch& decode(std::span<const int32_t> ids, int64_t position);

  // Returns a step with the pages of all sequences and no row, for requests that verify drafts.
  const ForwardBatch& pages_only();

 private:
  void start();
  void add_row(int64_t sequence, int32_t id, int64_t position);
  int64_t pages_of(int64_t sequence) const { return first_page_[sequence + 1] - first_page_[sequence]; }

  std::vector<int64_t> first_page_;  // [num_sequences + 1]
  int64_t page_table_stride_ = 0;    // the most pages of a sequence
  ForwardBatch batch_;
};

}  // namespace hadal::cli
