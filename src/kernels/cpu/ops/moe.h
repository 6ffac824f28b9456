// Declares router and routed experts. kernels/params/moe.h has the numerics.
#pragma once

#include <span>

#include "kernels/cpu/ops/exec_context.h"
#include "kernels/params/moe.h"
#include "tensor/tensor.h"

namespace hadal {

struct GateOptions {
  GateKind kind = GateKind::kSigmoidNoAuxTc;
  int num_groups = 1;
  int topk_groups = 1;
  bool renormalize = true;
  float scaling_factor = 1.0F;
};

// Turns logits float32 [m, num_experts] into topk_ids int32 [m, top_k] and topk_weights float32 [m, top_k].
// `bias` is [num_experts] or null.
void gate(const Tensor& logits, const float* bias, const GateOptions& options, const Tensor& topk_ids,
          const Tensor& topk_weights, ExecContext& exec);

// LocalExperts are experts [first, first + weights.size()) of the model's num_experts. There may be none.
struct LocalExperts {
  std::span<const MlpWeights> weights;
  int64_t first = 0;
  int64_t num_experts = 0;
};

// Computes y [m, hidden] = Σ weights · expert(x) + shared(x). The sum covers those of a token's experts that
// are local. Rows are dense. `shared` may be null.
void moe(const Tensor& x, const Tensor& topk_ids, const Tensor& topk_weights, const LocalExperts& experts,
         const MlpWeights* shared, const Tensor& y, ExecContext& exec);

}  // namespace hadal
