// Computes y = x · Wᵀ and its batched and gated forms on tensors. kernels/params/linear.h has the numerics.
#pragma once

#include <initializer_list>

#include "kernels/cpu/ops/exec_context.h"
#include "kernels/params/linear.h"
#include "kernels/params/moe.h"
#include "tensor/tensor.h"

namespace hadal {

// x is float32 [m, w.k] and y float32 [m, w.n], with strided rows and a dense last dimension. w.n may be 0.
void linear(const Tensor& x, const MatrixWeight& w, const Tensor& y, ExecContext& exec);

struct LinearOutput {
  const MatrixWeight& w;
  Tensor y;
};
// Computes several products of one x, each bit-identical to the result of `linear`, in one parallel region
// where that is faster.
void linear_group(const Tensor& x, std::initializer_list<LinearOutput> outputs, ExecContext& exec);

// These are the absorbed products of MLA. A call computes every head, on kv_b_proj as it is stored:
// [num_heads · 256, 512], with 128 rows of W_UK and 128 rows of W_UV per head.
//   absorb_query:  q_nope [m, h, ≥128] → q_latent [m, h, ≥512], the first 128 (512) of the last dimension
//   expand_value:  o_latent [m, h, 512] → o [m, h, 128]
void absorb_query(const Tensor& q_nope, const MatrixWeight& kv_b, const Tensor& q_latent, ExecContext& exec);
void expand_value(const Tensor& o_latent, const MatrixWeight& kv_b, const Tensor& o, ExecContext& exec);

// Computes y [m, hidden] = down(silu(gate x) ⊙ up x). Rows are dense. An intermediate size of 0 gives zeros.
void mlp(const Tensor& x, const MlpWeights& weights, const Tensor& y, ExecContext& exec);

}  // namespace hadal
