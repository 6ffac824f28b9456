// Declares linear for small matrices and a handful of rows (gemm/thin/kernel.cuh), one function per type of
// weights. This header is internal to kernels/cuda/gemm and includes no CUDA header.
#pragma once

#include "kernels/cuda/gemm/gemm.h"

namespace hadal::cuda::thin {

// Supports all types but float32; src/kernels/cuda/CMakeLists.txt instantiates it.
template <WeightType kType>
void linear_of(const DenseLinearParams& params, const Launch& launch);

}  // namespace hadal::cuda::thin
