// Declares linear by weight streaming (gemm/skinny/kernel.cuh), one function per type of weights. This header
// is internal to kernels/cuda and includes no CUDA header.
#pragma once

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/skinny/schedule.h"

namespace hadal::cuda::skinny {

// Supports all types but float32; src/kernels/cuda/CMakeLists.txt instantiates it.
template <WeightType kType>
void linear_of(const DenseLinearParams& params, const Launch& launch, const Schedule& schedule);

}  // namespace hadal::cuda::skinny
