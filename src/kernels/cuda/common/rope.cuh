// Computes RoPE over interleaved pairs, with the rounding of kernels/params/elementwise.h. Tables are
// [positions, 64]: 32 cosines, then 32 sines.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/common/types.cuh"

namespace hadal::cuda {

// Rotates the pair (a, b); each product is rounded before the sum.
__device__ __forceinline__ float2 rotate(float a, float b, float cosine, float sine) {
  return {__fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine)),
          __fadd_rn(__fmul_rn(b, cosine), __fmul_rn(a, sine))};
}

// Rotates four neighbouring pairs of type T (bf16 or f16).
template <typename T = bf16>
__device__ __forceinline__ uint4 rotate8(uint4 packed, float4 cosines, float4 sines) {
  const auto turn = [](uint32_t pair, float cosine, float sine) {
    const float2 x = unpack_two<T>(pair);
    const float2 y = rotate(x.x, x.y, cosine, sine);
    return pack_two<T>(y.x, y.y);
  };
  return {turn(packed.x, cosines.x, sines.x), turn(packed.y, cosines.y, sines.y),
          turn(packed.z, cosines.z, sines.z), turn(packed.w, cosines.w, sines.w)};
}

}  // namespace hadal::cuda
