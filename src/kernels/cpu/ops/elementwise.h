// Declares embedding, norms, RoPE, and the copies and sums of rows. kernels/params/elementwise.h has the
// numerics.
#pragma once

#include <span>

#include "kernels/cpu/ops/exec_context.h"
#include "kernels/params/elementwise.h"
#include "tensor/tensor.h"

namespace hadal {

// table is bf16 or float32 [vocab, hidden]; y is float32 [ids, hidden].
void embedding(const Tensor& table, std::span<const int32_t> ids, const Tensor& y, ExecContext& exec);

// Computes y = RMSNorm(x) ⊙ weight; y may be x. x and y are float32 [m, n] with strided rows.
void rms_norm(const Tensor& x, const float* weight, float eps, const Tensor& y, ExecContext& exec);
// Computes residual += x, then y = RMSNorm(residual) ⊙ weight. residual is dense [m, n].
void add_rms_norm(const Tensor& x, const Tensor& residual, const float* weight, float eps, const Tensor& y,
                  ExecContext& exec);

// Rotates x float32 [m, heads, 64] in place; cos_sin is [max_positions, 64].
void rope(const Tensor& x, std::span<const int32_t> positions, const float* cos_sin, ExecContext& exec);

// Computes y = x. Both are float32 of the same shape, with a dense last dimension and any other strides.
void copy(const Tensor& x, const Tensor& y, ExecContext& exec);
// Computes y[i, :] = x[rows[i], :]. Both are float32.
void gather_rows(const Tensor& x, std::span<const int32_t> rows, const Tensor& y, ExecContext& exec);
// Computes y[rows[i], :] = x[i, :]. Both are float32; other rows of y stay as they are.
void scatter_rows(const Tensor& x, std::span<const int32_t> rows, const Tensor& y, ExecContext& exec);
// Computes x += y. Both are dense float32 of the same shape.
void add(const Tensor& x, const Tensor& y, ExecContext& exec);

}  // namespace hadal
