// Makes index keys and queries in the registers of a warp: lane l has values 4l … 4l + 3 of the 128.
#pragma once

#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/common/rope.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/params/indexer.h"

namespace hadal::cuda {

struct IndexValues {
  float v[4];
};

__device__ __forceinline__ float shuffle_xor(float value, int distance) {
  return __shfl_xor_sync(0xffffffffU, value, distance);
}
__device__ __forceinline__ float sum_of_lanes(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += shuffle_xor(value, distance);
  return value;
}

// Loads four values of a bf16 row; `row` is 8-byte aligned.
__device__ __forceinline__ IndexValues load_index_values(const bf16* row, int lane) {
  const uint2 packed = reinterpret_cast<const uint2*>(row)[lane];
  const float2 low = unpack_bf16(packed.x);
  const float2 high = unpack_bf16(packed.y);
  return {{low.x, low.y, high.x, high.y}};
}

// Applies LayerNorm in float32; the variance is computed from differences from the mean.
__device__ __forceinline__ void layer_norm(IndexValues& x, const float4& weight, const float4& bias,
                                           float eps) {
  const float mean = sum_of_lanes((x.v[0] + x.v[1]) + (x.v[2] + x.v[3])) * (1.0F / kIndexHeadDim);
  float squares = 0.0F;
#pragma unroll
  for (float& v : x.v) {
    v -= mean;
    squares = fmaf(v, v, squares);
  }
  const float factor = __frsqrt_rn(fmaf(sum_of_lanes(squares), 1.0F / kIndexHeadDim, eps));
  const float w[4] = {weight.x, weight.y, weight.z, weight.w};
  const float b[4] = {bias.x, bias.y, bias.z, bias.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) x.v[i] = fmaf(x.v[i] * factor, w[i], b[i]);
}

// Rotates the first 64 values by halves: the values of lanes 0 … 7 are paired with those of lanes 8 … 15.
// `table` has 32 cosines, then 32 sines.
__device__ __forceinline__ void rotate_halves(IndexValues& x, const float* table, int lane) {
  const int at = lane % 8 * 4;
  const float4 cosines = *reinterpret_cast<const float4*>(table + at);
  const float4 sines = *reinterpret_cast<const float4*>(table + kIndexRopeDim / 2 + at);
  const float c[4] = {cosines.x, cosines.y, cosines.z, cosines.w};
  const float s[4] = {sines.x, sines.y, sines.z, sines.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float own = x.v[i];
    const float other = shuffle_xor(own, 8);
    const float2 first = rotate(own, other, c[i], s[i]);
    const float2 second = rotate(other, own, c[i], s[i]);
    x.v[i] = lane < 8 ? first.x : lane < 16 ? second.y : own;
  }
}

// Multiplies by the Hadamard matrix and 128^−0.5, with butterflies at distances 64, 32, …, 1.
__device__ __forceinline__ void hadamard(IndexValues& x, int lane) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
#pragma unroll
    for (float& v : x.v) {
      const float other = shuffle_xor(v, distance);
      v = (lane & distance) == 0 ? v + other : other - v;
    }
  }
  const float a = x.v[0] + x.v[2], b = x.v[1] + x.v[3];
  const float c = x.v[0] - x.v[2], d = x.v[1] - x.v[3];
  x.v[0] = (a + b) * kIndexHadamardScale;
  x.v[1] = (a - b) * kIndexHadamardScale;
  x.v[2] = (c + d) * kIndexHadamardScale;
  x.v[3] = (c - d) * kIndexHadamardScale;
}

// Returns the scale of the warp's 128 values: max(amax, 1e-4) / 448, rounded up to a power of two.
__device__ __forceinline__ float index_scale(const IndexValues& x) {
  float amax = kKvMinAmax;
#pragma unroll
  for (const float v : x.v) amax = fmaxf(amax, fabsf(v));
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) amax = fmaxf(amax, shuffle_xor(amax, distance));
  return group_scale(amax, true);
}

// Returns the e4m3 codes of the lane's four values.
__device__ __forceinline__ uint32_t index_codes(const IndexValues& x, float scale) {
  float q[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) q[i] = __fdiv_rn(x.v[i], scale);
  const uint32_t low = __nv_cvt_float2_to_fp8x2({q[0], q[1]}, __NV_SATFINITE, __NV_E4M3);
  const uint32_t high = __nv_cvt_float2_to_fp8x2({q[2], q[3]}, __NV_SATFINITE, __NV_E4M3);
  return low | high << 16;
}

}  // namespace hadal::cuda
