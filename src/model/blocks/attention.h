// Computes one multi-head latent attention block (DeepSeek-V2, arXiv 2405.04434 §2.1), from normalised hidden
// states to o_proj.
#pragma once

#include "kernels/cpu/ops/exec_context.h"
#include "model/model.h"
#include "tensor/tensor.h"

namespace hadal {

// AttentionStep is data shared by all attention layers of a step.
struct AttentionStep {
  const ForwardBatch& batch;
  const float* cos_sin;  // from RopeTable, covering every position of the batch
  float softmax_scale;
  float norm_eps;
  int64_t num_heads;
};

// Computes y float32 [m, hidden] from x float32 [m, hidden]. It writes the m new records to `pool` first, so
// that a token reads its own record as later tokens will. Prefill rows attend un-absorbed, decode rows
// absorbed.
void attention_block(const AttentionWeights& weights, const Tensor& x, std::byte* pool, const KvCache& cache,
                     const AttentionStep& step, const Tensor& y, ExecContext& exec);

}  // namespace hadal
