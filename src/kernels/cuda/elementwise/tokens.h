// quantize_rows and silu_mul to rows with one scale each (elementwise/tokens.cu). Internal to
// kernels/cuda/elementwise; free of CUDA headers.
#pragma once

#include "kernels/cuda/elementwise/elementwise.h"

namespace hadal::cuda {

inline constexpr int64_t kMaxTokenColumns = 32768;  // of a row of codes

// Widths and strides must be multiples of 8, pointers multiples of 16 bytes, and there may be at most
// kMaxTokenColumns columns.
void quantize_tokens(const QuantizeParams& params, const Launch& launch);
void silu_mul_tokens(const SiluMulParams& params, const Launch& launch);

}  // namespace hadal::cuda
