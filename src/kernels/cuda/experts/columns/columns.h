// Computes the products of a layer's experts for many rows in 16 bits, with the tokens as the columns of the
// tensor cores' tiles. This header includes no CUDA header.
#pragma once

#include "kernels/cuda/experts/choice.h"
#include "kernels/cuda/experts/experts.h"

namespace hadal::cuda {

// Computes y[i, :] = x[i, :] · W[e]ᵀ for the rows i of expert e. If activated, W[e] is [gate | up] of `n`
// features each, and y[i, j] = silu(gate_j) · up_j. Gate and up are first rounded to 16 bits, as a separate
// product would round them.
struct ExpertColumnsParams {
  bool f16 = false;         // x, tokens, w and y are float16, not bf16
  const void* x = nullptr;  // [num_x_rows, k], rows x_stride apart, sorted by expert
  int64_t x_stride = 0;
  int64_t num_x_rows = 0;  // num_rows, or with `tokens` the rows of the experts before direct_from
  // experts from direct_from on (the shared ones) have every token, in order, and read `tokens`:
  const void* tokens =
      nullptr;  // [num_tokens, k], rows tokens_stride apart; only with direct_from < num_experts
  int64_t tokens_stride = 0;
  int64_t num_tokens = 0;
  int direct_from = 0;                      // num_experts: none
  const int32_t* expert_offsets = nullptr;  // [num_experts + 1], on the device
  int64_t num_rows = 0;
  int num_experts = 0;
  const void* w = nullptr;  // expert 0's: [n, k], activated [2·n, k]
  int64_t w_row_stride = 0;
  int64_t expert_stride = 0;
  int64_t n = 0, k = 0;
  void* y = nullptr;  // [num_rows, n], dense
  bool activated = false;
};
// Returns the shape of the parameters. The columns kernel must support it: supports() of experts/choice.h
// tells, or columns_support_activation() if the product is activated.
GroupedShape columns_shape(const ExpertColumnsParams& params, int num_sms);
void expert_columns(const ExpertColumnsParams& params, const Launch& launch);

namespace columns {
// Launches one instantiation; src/kernels/cuda/CMakeLists.txt lists them.
template <bool kF16, bool kActivated>
void run(const ExpertColumnsParams& params, const Launch& launch);
}  // namespace columns

}  // namespace hadal::cuda
