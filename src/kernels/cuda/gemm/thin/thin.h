// linear for small matrices and a handful of rows (gemm/thin/kernel.cuh), one function per type of weights.
// Internal to kernels/cuda/gemm; free of CUDA headers.
#pragma once

#include "kernels/cuda/gemm/gemm.h"

namespace hadal::cuda::thin {

// All types but float32; instantiated by CMakeLists.txt of kernels/cuda.
template <WeightType kType>
void linear_of(const DenseLinearParams& params, const Launch& launch);

}  // namespace hadal::cuda::thin
