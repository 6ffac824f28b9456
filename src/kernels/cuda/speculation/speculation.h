// Keeps chains of drafts on the device: the inputs of NextN, the rows of drafts and of their verification,
// and which drafts are accepted. So no step has to wait until the host has read the lengths.
// docs/speculation.md describes the order of a step. This header includes no CUDA header.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sampling/sampling.h"

namespace hadal::cuda {

// Describes what a step samples for one request. The host writes this structure.
struct ChainItem {
  int32_t slot = -1;        // < 0: nothing is sampled
  int32_t seq_idx = 0;      // row of the page table
  int32_t first_row = 0;    // the item's first row in the step; rows of a verification are decode rows
  int32_t first_logit = 0;  // the item's first row among the step's logit rows
  int32_t max_rows = 1;     // most rows of a verification; rows that it does not need are padding
  int32_t verifies = 0;     // 0: one row, the last of a prompt or of recomputed tokens, which the host wrote
  int32_t mask_row = -1;    // the request's mask; −1: unconstrained
  int32_t tree = -1;        // index among the step's trees of drafts; −1: the item has none
  int32_t num_waiting = 0;  // records before the newest token that catch_up_rows makes
  // For a verification, this is the position at which its rows end (exclusive). Otherwise it is the position
  // of the token to be chosen.
  int64_t position = 0;
};

// Holds the rows of a batch that kernels of this family fill in. Rows that are padding get token 0, position
// 0, slot −1 and no keys.
struct ChainRows {
  int32_t* token_ids = nullptr;  // [rows]
  int32_t* positions = nullptr;  // [rows]
  int64_t* slots = nullptr;      // [rows]
  int32_t* seq_idx = nullptr;    // [decode rows]; null: the host has written it
  int32_t* kv_len = nullptr;     // [decode rows]
  // Masks of the newest records (DeviceDecodeParams). The host has set every bit; only kernels for trees
  // write them.
  uint64_t* newest_seen = nullptr;  // [decode rows]
  int64_t num_prefill = 0;          // rows before the first decode row
};

// Holds the arguments that the kernels share. All pointers are to device memory.
struct Chains {
  const ChainItem* items = nullptr;  // [num_items]
  int num_items = 0;
  int width = 1;  // the largest max_rows; ≤ max_width
  int max_width = 1;

  // These arrays hold state for each slot.
  int32_t* lengths = nullptr;       // [max_slots] tokens; 0: nothing was sampled, or the last step has failed
  int32_t* first_drafts = nullptr;  // [max_slots]: the guess that follows these tokens
  void* hidden = nullptr;           // [max_slots, hidden_size] of 16 bits: NextN's state that gave the guess
  const int32_t* last_token = nullptr;  // [max_slots], which sampling writes
  int64_t hidden_size = 0;
  // The target's hidden state at position p and the token at p + 1 are kept at index p % waiting_rows until
  // NextN makes a record of them.
  void* waiting_hidden = nullptr;   // [max_slots, waiting_rows, hidden_size] of 16 bits
  int32_t* waiting_next = nullptr;  // [max_slots, waiting_rows]
  int waiting_rows = 1;
  bool rests = false;  // the step does not run NextN for its verifications, which have one row each

  // These arrays hold state for the step.
  int32_t* num_rows = nullptr;       // [num_items]: rows that are sampled
  int64_t* positions = nullptr;      // [num_items]: position of the first token to be chosen
  int32_t* drafts = nullptr;         // [num_items, max_width]
  SampleResult* results = nullptr;   // [width, num_items]; token −1: not sampled
  SampleRow* sample_rows = nullptr;  // [num_items], for the next call of sample()
  int32_t* hidden_rows = nullptr;    // [num_items]: rows of `hidden` that NextN reads
  SampleResult* guesses = nullptr;   // [num_items]: the results of sampling NextN's logits

  const int32_t* page_table = nullptr;  // [·, page_table_stride]
  int64_t page_table_stride = 0;

  // If num_chances is not 0, the acceptance of drafts of items without a mask is simulated by the slot's seed
  // (base/simulated_acceptance.h). Otherwise drafts are accepted if they equal the sampled tokens.
  const double* chances = nullptr;  // [num_chances]: one for each depth; deeper drafts are not accepted
  int num_chances = 0;
  const SlotSampling* slots = nullptr;  // [max_slots]
};

// Fills in NextN's rows that make the waiting records. Each item has `stride` rows; num_waiting ≤ stride of
// them are needed, and the others are padding. hidden_rows [num_items · stride] are rows of waiting_hidden.
// The last row of an item, logit_rows [num_items], gives its first draft, for which sample_rows is filled in.
void catch_up_rows(const Chains& chains, int stride, const ChainRows& rows, int32_t* hidden_rows,
                   int32_t* logit_rows, const Launch& launch);

// Decides how many rows every item has, copies its slot's first draft, and clears the results.
void begin_chains(const Chains& chains, const Launch& launch);

// Fills in NextN's rows, one for each item, that guess draft number `depth` (≥ 1; the first draft is number
// 0), and the sampling rows for these guesses. If an item has no such draft, its row is padding.
void draft_rows(const Chains& chains, int depth, const ChainRows& rows, const Launch& launch);

// Keeps the guesses of items whose sample_rows have a slot, and NextN's hidden states next_hidden [num_items,
// hidden_size], as draft number `depth`, or with depth 0 as the slots' first drafts. A guess from logits with
// NaN is token 0.
void keep_guesses(const Chains& chains, int depth, const void* next_hidden, const Launch& launch);

// Fills in the rows of verifications in the step's batch.
void verify_rows(const Chains& chains, const ChainRows& rows, const Launch& launch);

// Chooses the items whose row number `depth` is sampled next: those whose drafts before that row have all
// been accepted. If `masked`, only items with a mask are chosen, otherwise only items without a mask.
void choose_rows(const Chains& chains, int depth, bool masked, const Launch& launch);

// Changes the step's batch into NextN's batch. Each row for which a token was sampled gets that token. Rows
// of drafts that were not accepted become padding, and so does every row of a verification if the step
// rests. It also writes guess_rows [num_items], which are the rows that give the next first drafts, writes
// the sampling rows for these drafts, and updates the slots' lengths.
void follow_rows(const Chains& chains, const ChainRows& rows, int32_t* guess_rows, const Launch& launch);

// In a step that rests, stores the inputs from which NextN will later make the records of the sampled tokens'
// predecessors. target_hidden [rows, hidden_size] are the target's states of the step's rows. It must be
// launched before follow_rows.
void keep_waiting(const Chains& chains, const void* target_hidden, const Launch& launch);

// Computes y[i] = [norm(table[ids[i]]) ⊙ enorm | norm(hidden[row]) ⊙ hnorm], the input of eh_proj
// (DeepSeek-V3, arXiv 2412.19437 §2.2). row is rows[i], or i if `rows` is null. ids outside [0, vocab) give
// zeros in the first half. Norms are computed in float32.
struct JoinHiddenParams {
  const void* table = nullptr;    // [vocab, n] of 16 bits
  const int32_t* ids = nullptr;   // [m]
  const void* hidden = nullptr;   // [·, n] of 16 bits
  const int32_t* rows = nullptr;  // [m] or null
  const float* enorm = nullptr;   // [n]
  const float* hnorm = nullptr;   // [n]
  void* y = nullptr;              // [m, 2 · n] of 16 bits
  int64_t m = 0, n = 0, vocab = 0;
  float eps = 1e-6F;
  bool f16 = false;  // table, hidden and y
};
void join_hidden(const JoinHiddenParams& params, const Launch& launch);

}  // namespace hadal::cuda
