// linear by weight streaming (gemm/skinny/kernel.cuh): one function per type of weights. Internal to
// kernels/cuda; free of CUDA headers.
#pragma once

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/skinny/schedule.h"

namespace hadal::cuda::skinny {

// All types but float32; instantiated by CMakeLists.txt of kernels/cuda.
template <WeightType kType>
void linear_of(const DenseLinearParams& params, const Launch& launch, const Schedule& schedule);

}  // namespace hadal::cuda::skinny
