// Holds arithmetic that several families of kernels use.
#pragma once

namespace hadal::cuda {

// Returns 2^x, with results below 2^-126 flushed to zero; −∞ gives 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace hadal::cuda
