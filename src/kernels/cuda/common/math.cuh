// Holds arithmetic that several families of kernels use.
#pragma once

namespace hadal::cuda {

// Returns 2^x, with results below 2^-126 flushed to zero; −∞ gives 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Returns max(x, 0), or NaN if x is NaN.
__device__ __forceinline__ float relu_or_nan(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace hadal::cuda
