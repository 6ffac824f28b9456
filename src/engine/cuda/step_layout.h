// Lays out a step's arrays in its block of inputs, which is copied to the device at once. The layout is a
// pure function of the sizes, because a graph reads its inputs at the addresses they had when it was
// captured. This header includes no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/model.h"

namespace hadal {

struct StepSizes {
  int64_t tokens = 0;
  int64_t decode_rows = 0;
  int64_t logit_rows = 0;
  int64_t feeds = 0;
  int64_t samples = 0;       // rows sampled with the step
  int64_t constrained = 0;   // rows sampled once their masks have arrived
  int64_t page_updates = 0;  // page table entries that have changed
  int64_t scores = 0;
  int64_t key_runs = 0;
  int64_t segment_runs = 0;
  int64_t absorbed_rows = 0;
  int64_t absorbed_groups = 0;
  int64_t selecting_rows = 0;
  int64_t copies = 0;

  // Returns the sizes of a pure decode step of `rows` rows, including padding: every row may feed and sample.
  // Page copies come last in the block, so that their number does not move the other arrays.
  static StepSizes decode(int64_t rows, int64_t copies);
};

struct StepLayout {  // in bytes
  size_t token_ids = 0, positions = 0, slots = 0, num_valid = 0;
  size_t decode_seq_idx = 0, decode_kv_len = 0, logit_rows = 0;
  size_t feed_rows = 0, feed_slots = 0;
  size_t samples = 0, constrained = 0;
  size_t page_places = 0, page_idx = 0, page_values = 0;
  size_t score_rows = 0, score_ids = 0, score_top = 0;
  size_t key_runs = 0, segment_runs = 0;
  size_t absorbed_rows = 0, absorbed_seq_idx = 0, absorbed_kv_len = 0;
  size_t selecting_seq_idx = 0, selecting_kv_len = 0;
  size_t copies = 0;
  size_t bytes = 0;  // size of all arrays
};

StepLayout layout_step(const StepSizes& sizes);

// Returns true if all keys of the step's decode rows, except their own, come from earlier steps. A layer's
// decode attention may then begin on them before this layer's records are written. It is false where
// generated tokens are computed again: several of a request in one step, or after the end of its prompt. It
// is also false for steps with prompt tokens, which would gain little.
bool decode_settled(const ForwardBatch& batch);

}  // namespace hadal
