// Lays running sequences out as one ForwardBatch: prompt chunks first, then one token of each decoding
// sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/sequence.h"
#include "model/model.h"

namespace hadal {

// What a step computes for one sequence.
struct StepItem {
  Sequence* sequence = nullptr;
  int64_t num_tokens = 0;       // from sequence->num_computed on
  int64_t first_logit_row = 0;  // into the batch's logits
  int64_t num_logit_rows = 0;  // 0 while the chunk is not the prompt's last and no prompt logprobs are wanted
};

// Chooses this step's items: every decoding sequence, and prompt chunks in order of arrival, at most
// `prefill_budget` prompt tokens together. Fills in the logit rows.
std::vector<StepItem> plan_step(const std::vector<Sequence*>& running, int64_t prefill_budget);

// The batch of `items`, in their order (prefill items come first).
void build_batch(const std::vector<StepItem>& items, ForwardBatch& batch);

}  // namespace hadal
