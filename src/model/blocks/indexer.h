// Runs V3.2's indexer ("DeepSeek Sparse Attention", DeepSeek-V3.2-Exp; kernels/params/indexer.h has the
// numerics). It stores an index key for every token. For tokens that see more than index_topk keys, it
// selects the keys to which they attend.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/ops/exec_context.h"
#include "kernels/params/indexer.h"
#include "model/model.h"
#include "tensor/tensor.h"

namespace hadal {

// Prompt rows that select keys are processed this many at a time, which bounds the memory of their queries
// (32 KB a row for 64 heads) and of their selections (a bit for each key that the last of them sees).
inline constexpr int64_t kMaxSelectingRows = 512;

// SelectionPlan says how the rows of a step attend: to all keys that they see, or to those that the indexer
// selects. It is the same in every layer.
struct SelectionPlan {
  // PrefillRun is a run of prompt rows that attend in the same way. A run that selects has one segment and at
  // most kMaxSelectingRows rows.
  struct PrefillRun {
    int64_t first_row = 0;  // of the step
    int64_t num_rows = 0;
    std::vector<PrefillSegment> segments;  // q_begin counts from first_row
    bool selects = false;
    std::vector<int32_t> seq_idx;  // [num_rows] if it selects
    std::vector<int32_t> kv_len;   // [num_rows] if it selects: keys that the row sees
  };
  // DecodeRows are the decode rows that attend in the same way.
  struct DecodeRows {
    std::vector<int32_t> rows;                        // counted from the first decode row, ascending
    std::vector<int32_t> seq_idx, kv_len, positions;  // [rows.size()]
    std::vector<uint64_t> ancestors;                  // [rows.size()], or empty (ForwardBatch)
  };

  int64_t topk = 0;                 // 0: the model has no indexer, and all rows attend to all keys
  std::vector<PrefillRun> prefill;  // in order of rows; together all prompt rows
  DecodeRows to_all;                // decode rows that see at most topk keys
  DecodeRows selecting;             // the others
};

// Makes the plan of a step. A row selects keys if it sees more than `topk`; if `topk` is 0, no row does. The
// masks of rows that select keys must be causal.
SelectionPlan plan_selection(const ForwardBatch& batch, int64_t topk);

// LayerIndex is one layer's indexer in a step.
struct LayerIndex {
  const IndexerWeights& weights;
  PagedIndex keys;
  const float* cos_sin = nullptr;  // from RopeTable, covering every position of the step
};

// Writes the index keys of a step's tokens; k float32 [m, 128] is wk's product.
void store_index_keys(const LayerIndex& index, const Tensor& k, const ForwardBatch& batch, ExecContext& exec);

// Returns the selections of a prefill run as bits [num_rows, words], in the workspace. x float32 [num_rows,
// hidden] and q_latent float32 [num_rows, q_lora_rank] are the run's normalised hidden states and query
// latents; positions is [num_rows].
std::span<const uint64_t> select_bits(const LayerIndex& index, const SelectionPlan::PrefillRun& run,
                                      int64_t topk, const Tensor& x, const Tensor& q_latent,
                                      std::span<const int32_t> positions, ExecContext& exec);

// Selection is a list of slots for each row, in the workspace.
struct Selection {
  Tensor slots;               // int32 [rows, topk]
  std::span<int32_t> counts;  // [rows]
};

// Returns the selections of decode rows. x and q_latent are as above, but of these decode rows.
Selection select_slots(const LayerIndex& index, const SelectionPlan::DecodeRows& rows, int64_t topk,
                       const Tensor& x, const Tensor& q_latent, ExecContext& exec);

}  // namespace hadal
