// Holds the parts that the row-wise kernels share: accesses of eight values per thread, sums and maxima over
// lanes, quantised rows.
//
// Eight consecutive values per thread make every bf16 access 16 bytes, and put a quantisation group (128
// values) in sixteen neighbouring lanes. Loads are plain loads, not ld.global.nc, because the compiler must
// not move them above pdl_wait().
#pragma once

#include <cstdint>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/alignment.h"
#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/rope.cuh"
#include "kernels/cuda/common/types.cuh"

namespace hadal::cuda {

inline constexpr int kVec = 8;
inline constexpr unsigned kAllLanes = 0xffffffffU;

struct Floats8 {
  float v[kVec];
};

template <typename T = bf16>
__device__ __forceinline__ Floats8 widen8(uint4 packed) {
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
  Floats8 out;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack_two<T>(words[i]);
    out.v[2 * i] = pair.x;
    out.v[2 * i + 1] = pair.y;
  }
  return out;
}
__device__ __forceinline__ Floats8 load8(const bf16* p) {
  return widen8(*reinterpret_cast<const uint4*>(p));
}
__device__ __forceinline__ Floats8 load8(const f16* p) {
  return widen8<f16>(*reinterpret_cast<const uint4*>(p));
}
__device__ __forceinline__ Floats8 load8(const float* p) {
  const float4 a = *reinterpret_cast<const float4*>(p);
  const float4 b = *reinterpret_cast<const float4*>(p + 4);
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
__device__ __forceinline__ void store8(float* p, const Floats8& x) {
  *reinterpret_cast<float4*>(p) = {x.v[0], x.v[1], x.v[2], x.v[3]};
  *reinterpret_cast<float4*>(p + 4) = {x.v[4], x.v[5], x.v[6], x.v[7]};
}
template <typename T>  // bf16 or f16
__device__ __forceinline__ uint4 narrow8(const Floats8& x) {
  return {pack_two<T>(x.v[0], x.v[1]), pack_two<T>(x.v[2], x.v[3]), pack_two<T>(x.v[4], x.v[5]),
          pack_two<T>(x.v[6], x.v[7])};
}
template <typename T>
__device__ __forceinline__ void store8(T* p, const Floats8& x) {
  *reinterpret_cast<uint4*>(p) = narrow8<T>(x);
}

// These return the sum and the maximum over the kLanes neighbouring lanes that a lane belongs to. All lanes
// of the warp call them.
template <int kLanes = 32>
__device__ __forceinline__ float lanes_sum(float v) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) v += __shfl_xor_sync(kAllLanes, v, step);
  return v;
}
template <int kLanes = 32>
__device__ __forceinline__ float lanes_max(float v) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, step));
  return v;
}

__device__ __forceinline__ float abs_max8(const Floats8& x) {
  float most = fabsf(x.v[0]);
#pragma unroll
  for (int i = 1; i < kVec; ++i) most = fmaxf(most, fabsf(x.v[i]));
  return most;
}

__device__ __forceinline__ uint32_t e4m3x4(float a, float b, float c, float d) {
  const uint32_t low = __nv_cvt_float2_to_fp8x2({a, b}, __NV_SATFINITE, __NV_E4M3);
  const uint32_t high = __nv_cvt_float2_to_fp8x2({c, d}, __NV_SATFINITE, __NV_E4M3);
  return low | high << 16;
}
__device__ __forceinline__ uint32_t e5m2x4(float a, float b, float c, float d) {
  const uint32_t low = __nv_cvt_float2_to_fp8x2({a, b}, __NV_SATFINITE, __NV_E5M2);
  const uint32_t high = __nv_cvt_float2_to_fp8x2({c, d}, __NV_SATFINITE, __NV_E5M2);
  return low | high << 16;
}
// Rounds to the nearest integers, ties to even, and packs them; the conversion saturates.
__device__ __forceinline__ uint32_t int8x4(float a, float b, float c, float d) {
  uint32_t high;
  uint32_t all;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;"
      : "=r"(high)
      : "r"(__float2int_rn(d)), "r"(__float2int_rn(c)), "r"(0));
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;"
      : "=r"(all)
      : "r"(__float2int_rn(b)), "r"(__float2int_rn(a)), "r"(high));
  return all;
}
// Returns the codes of x / scale, with the quotient first rounded to float32, as division does. The quotient
// is a product with the reciprocal, corrected once by its remainder: with eight divisions here, the
// quantising kernels reached only half the bandwidth.
__device__ __forceinline__ uint2 codes8(const Floats8& x, float scale, bool int8) {
  float q[kVec];
  if (scale > 0x1p-100F && scale < 0x1p100F) {
    const float reciprocal = __frcp_rn(scale);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const float near = x.v[i] * reciprocal;
      q[i] = fmaf(fmaf(-near, scale, x.v[i]), reciprocal, near);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kVec; ++i) q[i] = __fdiv_rn(x.v[i], scale);
  }
  if (int8) return {int8x4(q[0], q[1], q[2], q[3]), int8x4(q[4], q[5], q[6], q[7])};
  return {e4m3x4(q[0], q[1], q[2], q[3]), e4m3x4(q[4], q[5], q[6], q[7])};
}
__device__ __forceinline__ uint2 e4m3_codes8(const Floats8& x, float scale) {
  return codes8(x, scale, false);
}

// Returns the scale of a row or group whose largest magnitude is `amax`.
__device__ __forceinline__ float scale_of(const QuantizedRows& y, float amax) {
  return is_int8(y.format) ? group_scale(amax, false, kInt8Max) : group_scale(amax, y.power_of_two);
}

// Quantises and stores a thread's eight values at `column`. All lanes of the warp call it; the columns of
// each half warp begin at a multiple of 128 and increase by 8 from lane to lane. Values past the row's width
// must be zero. Columns at or beyond the stride are not stored.
__device__ __forceinline__ void store8_quantized(const QuantizedRows& y, int64_t row, int column,
                                                 const Floats8& x) {
  const float scale = scale_of(y, lanes_max<kQuantGroup / kVec>(abs_max8(x)));
  if (column >= y.stride) return;
  *reinterpret_cast<uint2*>(y.codes + row * y.stride + column) = codes8(x, scale, is_int8(y.format));
  if (column % kQuantGroup == 0) y.scales[column / kQuantGroup * y.scale_stride + row] = scale;
}
// Does the same with one scale for the whole row.
__device__ __forceinline__ void store8_of_token(const QuantizedRows& y, int64_t row, int column,
                                                const Floats8& x, float scale) {
  if (column >= y.stride) return;
  *reinterpret_cast<uint2*>(y.codes + row * y.stride + column) = codes8(x, scale, is_int8(y.format));
  if (column == 0) y.scales[row] = scale;
}

// Returns 1 / sqrt(sum / n + eps), correctly rounded in float32.
__device__ __forceinline__ float norm_factor(float sum_of_squares, int64_t n, float eps) {
  return __frsqrt_rn(__fdiv_rn(sum_of_squares, static_cast<float>(n)) + eps);
}

__device__ __forceinline__ float silu_times(float gate, float up) {
  return __fdividef(gate, 1.0F + __expf(-gate)) * up;
}

inline bool on_16_bytes(const QuantizedRows& rows) {
  return on_16_bytes(rows.codes) && rows.stride % kQuantGroup == 0;
}

}  // namespace hadal::cuda
