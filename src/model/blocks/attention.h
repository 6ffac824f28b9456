// Computes one multi-head latent attention block (DeepSeek-V2, arXiv 2405.04434 §2.1), from normalised hidden
// states to o_proj. In V3.2, rows that see many keys attend only to those that the indexer selects.
#pragma once

#include "kernels/cpu/ops/exec_context.h"
#include "model/blocks/indexer.h"
#include "model/model.h"
#include "tensor/tensor.h"

namespace hadal {

// AttentionStep holds data that all attention layers of a step share.
struct AttentionStep {
  const ForwardBatch& batch;
  const float* cos_sin;  // from RopeTable, covering every position of the batch
  float softmax_scale;
  float norm_eps;
  SelectionPlan selection;
};

// Computes y float32 [m, hidden] from x float32 [m, hidden]. It first writes the m new records, and with an
// indexer the m new index keys, to the cache's pools of the layer, so that a token reads its own record in
// the form in which later tokens will read it. Prefill rows attend un-absorbed, decode rows absorbed. With
// the weights of one rank, y is the part of the sum that comes from the rank's heads.
void attention_block(const AttentionWeights& weights, const Tensor& x, const KvCache& cache,
                     int64_t layer_idx, const AttentionStep& step, const Tensor& y, ExecContext& exec);

}  // namespace hadal
