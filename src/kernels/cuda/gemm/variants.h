// The ways to compute cuda::linear and the absorbed products, among which gemm/choice.cpp chooses. Internal
// to kernels/cuda/gemm, its benches and the measurements of `hadal tune` (tune/product_measurer.cpp);
// free of CUDA headers.
#pragma once

#include "kernels/cuda/gemm/choice.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/skinny/schedule.h"

namespace hadal::cuda {

// A given choice, which must take the shape.
void launch_linear(const LinearChoice& choice, const LinearParams& params, GemmLibrary& library,
                   const Launch& launch);
LinearShape linear_shape(const LinearParams& params, int num_sms);

namespace reference {
// Plain loops, one output a thread: any shape and type.
void linear(const LinearParams& params, const Launch& launch);
void absorb_query(const AbsorbQueryParams& params, const Launch& launch);
void expand_value(const ExpandValueParams& params, const Launch& launch);
}  // namespace reference

// Weight streaming for few rows (gemm/skinny/linear.cu): all types but float32.
inline constexpr int64_t kMaxSkinnyRows = 64;
// Whether skinny_linear takes these arguments: k a multiple of 8 (16-bit types) or padded to 128 (codes),
// pointers and strides of weights and activations multiples of 16 bytes, 1 ≤ m ≤ kMaxSkinnyRows.
bool skinny_linear_takes(const LinearParams& params);
void skinny_linear(const LinearParams& params, const Launch& launch);
void skinny_linear(const LinearParams& params, const Launch& launch, const skinny::Schedule& schedule);

// The same for m ≤ 16 and matrices that one wave of blocks holds (gemm/thin/thin.cu): shortest from x to
// y.
inline constexpr int64_t kMaxThinRows = 16;
bool thin_linear_takes(const LinearParams& params);
void thin_linear(const LinearParams& params, const Launch& launch);

// The absorbed products for few tokens (gemm/absorbed/few.cu): 16-bit and FP8 weights, 16-byte aligned rows.
bool absorb_query_few_takes(const AbsorbQueryParams& params);
bool expand_value_few_takes(const ExpandValueParams& params);
void absorb_query_few(const AbsorbQueryParams& params, const Launch& launch);
void expand_value_few(const ExpandValueParams& params, const Launch& launch);
// The same for many (gemm/absorbed/absorb_tiled.cu, gemm/absorbed/expand_tiled.cu): what those take, and rows
// of y of expand_value 16-byte aligned. gemm/absorbed/choice.h chooses.
bool expand_value_tiled_takes(const ExpandValueParams& params);
void absorb_query_tiled(const AbsorbQueryParams& params, const Launch& launch);
void expand_value_tiled(const ExpandValueParams& params, const Launch& launch);

// float32 or 16-bit weights against rows of 16 bits with float32 products: routers (gemm/router/router.cu). k
// a multiple of 8.
bool router_linear_takes(const LinearParams& params);
void router_linear(const LinearParams& params, const Launch& launch);

// cuBLASLt, 16-bit weights, any m (gemm/library/library.cpp).
void cublaslt_linear(const LinearParams& params, GemmLibrary& library, const Launch& launch);

// Tiled WGMMA kernel, 8-bit weights, for many rows (gemm/tiled/linear.cpp). Its blocks leave each other sums
// in the library's workspace.
RestWorkspace rest_workspace(GemmLibrary& library);
bool wgmma_linear_takes(const LinearParams& params);
void wgmma_linear(const LinearParams& params, const Launch& launch);

}  // namespace hadal::cuda
