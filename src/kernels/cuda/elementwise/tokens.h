// Declares quantize_rows and silu_mul for results with one scale per row (elementwise/tokens.cu). This header
// is internal to kernels/cuda/elementwise and includes no CUDA header.
#pragma once

#include "kernels/cuda/elementwise/elementwise.h"

namespace hadal::cuda {

inline constexpr int64_t kMaxTokenColumns = 32768;  // columns of a row of codes

// Both require widths and strides that are multiples of 8, pointers aligned to 16 bytes, and at most
// kMaxTokenColumns columns.
void quantize_tokens(const QuantizeParams& params, const Launch& launch);
void silu_mul_tokens(const SiluMulParams& params, const Launch& launch);

}  // namespace hadal::cuda
