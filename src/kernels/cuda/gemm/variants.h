// The ways to compute cuda::linear and the absorbed products, among which gemm/choice.cpp chooses. Internal
// to kernels/cuda/gemm, its benches and the measurements of `hadal tune` (tune/product_measurer.cpp);
// free of CUDA headers.
#pragma once

#include "kernels/cuda/gemm/choice.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/skinny/schedule.h"

namespace hadal::cuda {

// Runs a given choice; throws if it does not support the shape.
void launch_linear(const LinearChoice& choice, const DenseLinearParams& params, GemmLibrary& library,
                   const Launch& launch);
// The shape of these arguments, by which a kernel is chosen.
LinearShape linear_shape(const DenseLinearParams& params, int num_sms = LinearShape{}.num_sms);

namespace reference {
// Plain loops with one output per thread, for any shape and type.
void linear(const DenseLinearParams& params, const Launch& launch);
void absorb_query(const AbsorbQueryParams& params, const Launch& launch);
void expand_value(const ExpandValueParams& params, const Launch& launch);
}  // namespace reference

// Each launcher below checks its variant's supports(linear_shape(params)), by which the choice filters.

// Weight streaming for few rows (gemm/skinny/linear.cpp): all types but float32. Without a schedule it uses
// the heuristic's.
void skinny_linear(const DenseLinearParams& params, const Launch& launch);
void skinny_linear(const DenseLinearParams& params, const Launch& launch, const skinny::Schedule& schedule);

// The same for up to thin::kMaxRows rows and matrices that one wave of blocks holds (gemm/thin/thin.cpp): the
// shortest time from x to y.
void thin_linear(const DenseLinearParams& params, const Launch& launch);

// The absorbed products for few tokens (gemm/absorbed/few.cu): 16-bit and FP8 weights, 16-byte aligned rows.
bool supports_absorb_query(const AbsorbQueryParams& params);
bool supports_expand_value(const ExpandValueParams& params);
void absorb_query_few(const AbsorbQueryParams& params, const Launch& launch);
void expand_value_few(const ExpandValueParams& params, const Launch& launch);
// The same for many tokens (gemm/absorbed/absorb_tiled.cu, gemm/absorbed/expand_tiled.cu). They support the
// same shapes, but rows of y of expand_value must begin at multiples of 16 bytes. gemm/absorbed/choice.h
// chooses.
bool supports_expand_value_tiled(const ExpandValueParams& params);
void absorb_query_tiled(const AbsorbQueryParams& params, const Launch& launch);
void expand_value_tiled(const ExpandValueParams& params, const Launch& launch);

// Routers (gemm/router/router.cu): float32 or 16-bit weights against rows of 16 bits with float32 products. k
// must be a multiple of 8.
void router_linear(const DenseLinearParams& params, const Launch& launch);

// cuBLASLt, 16-bit weights, any m (gemm/library/library.cpp).
void cublaslt_linear(const DenseLinearParams& params, GemmLibrary& library, const Launch& launch);

// The tiled WGMMA kernel for 8-bit weights and many rows (gemm/tiled/linear.cpp). Its blocks exchange sums in
// the library's workspace.
RestWorkspace rest_workspace(GemmLibrary& library);
void wgmma_linear(const DenseLinearParams& params, const Launch& launch);

}  // namespace hadal::cuda
