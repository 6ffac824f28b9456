// Declares the variants of cuda::linear and of the absorbed products. gemm/choice.cpp and
// gemm/absorbed/choice.h choose among them. This header is internal to kernels/cuda/gemm, its benches and the
// measurements of `hadal tune` (tune/product_measurer.cpp); it includes no CUDA header.
#pragma once

#include "kernels/cuda/gemm/choice.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/skinny/schedule.h"

namespace hadal::cuda {

// Returns the shape of these arguments, by which a kernel is chosen.
LinearShape linear_shape(const DenseLinearParams& params, int num_sms = LinearShape{}.num_sms);

namespace reference {
// These run plain loops with one output per thread, for any shape and type.
void linear(const DenseLinearParams& params, const Launch& launch);
void absorb_query(const AbsorbQueryParams& params, const Launch& launch);
void expand_value(const ExpandValueParams& params, const Launch& launch);
}  // namespace reference

// Each launcher of a linear below checks its variant's supports(linear_shape(params)); a choice considers
// only variants for which this is true.

// Streams the weights past few rows (gemm/skinny/linear.cpp); supports all types but float32. Without a
// schedule it uses the heuristic's.
void skinny_linear(const DenseLinearParams& params, const Launch& launch);
void skinny_linear(const DenseLinearParams& params, const Launch& launch, const skinny::Schedule& schedule);

// Computes linear for up to thin::kMaxRows rows and matrices that one wave of blocks can hold
// (gemm/thin/thin.cpp). Of all variants it takes the shortest time from x to y.
void thin_linear(const DenseLinearParams& params, const Launch& launch);

// These compute the absorbed products for few tokens (gemm/absorbed/few.cu), with 16-bit and FP8 weights and
// 16-byte aligned rows.
bool supports_absorb_query(const AbsorbQueryParams& params);
bool supports_expand_value(const ExpandValueParams& params);
void absorb_query_few(const AbsorbQueryParams& params, const Launch& launch);
void expand_value_few(const ExpandValueParams& params, const Launch& launch);
// These do the same for many tokens (gemm/absorbed/absorb_tiled.cu, gemm/absorbed/expand_tiled.cu). They
// support the same shapes, but expand_value's rows of y must begin at multiples of 16 bytes.
// gemm/absorbed/choice.h chooses between the two kernels.
bool supports_expand_value_tiled(const ExpandValueParams& params);
void absorb_query_tiled(const AbsorbQueryParams& params, const Launch& launch);
void expand_value_tiled(const ExpandValueParams& params, const Launch& launch);

// Computes router logits (gemm/router/router.cu): float32 or 16-bit weights times rows of 16 bits with
// float32 products. k must be a multiple of 8.
void router_linear(const DenseLinearParams& params, const Launch& launch);

// Runs cuBLASLt with 16-bit weights and any m (gemm/library/library.cpp).
void cublaslt_linear(const DenseLinearParams& params, GemmLibrary& library, const Launch& launch);

// Returns the library's workspace, in which blocks of the tiled kernel exchange sums.
RestWorkspace rest_workspace(GemmLibrary& library);
// Runs the tiled WGMMA kernel for 8-bit weights and many rows (gemm/tiled/linear.cpp).
void wgmma_linear(const DenseLinearParams& params, const Launch& launch);

}  // namespace hadal::cuda
