// Computes the scales of FP8 activations (activation.h) for all device code, and represents numbers as sums
// of two e4m3 numbers.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/activation.h"

namespace hadal::cuda {

// Returns the scale of a group (or row) whose largest magnitude is `amax`; `most` is the largest value of a
// code. If the quotient underflows to zero, the scale is 1, as for a group of zeros.
__device__ __forceinline__ float group_scale(float amax, bool power_of_two, float most = kFp8E4m3Max) {
  const float scale = __fdiv_rn(amax, most);
  if (!(scale > 0.0F)) return 1.0F;
  if (!power_of_two) return scale;
  return __uint_as_float((__float_as_uint(scale) + 0x7fffffU) & 0xff800000U);
}

// Holds two numbers, each as hi + lo / 16. The low half of each word has a pair of e4m3 codes, with that of
// the first number in the low byte. Magnitudes are at most 448. Magnitudes from 2^-6 on keep 8 significant
// bits; smaller numbers are rounded to multiples of 2^-13.
struct E4M3Pair {
  uint32_t hi, lo;
};
__device__ __forceinline__ E4M3Pair split_e4m3(float first, float second) {
  const __half2 value = __floats2half2_rn(first, second);
  const __nv_fp8x2_storage_t hi = __nv_cvt_halfraw2_to_fp8x2(value, __NV_SATFINITE, __NV_E4M3);
  const __half2 near(__nv_cvt_fp8x2_to_halfraw2(hi, __NV_E4M3));
  const __half2 rest = __hmul2(__hsub2(value, near), __float2half2_rn(16.0F));  // exact
  return {hi, __nv_cvt_halfraw2_to_fp8x2(rest, __NV_SATFINITE, __NV_E4M3)};
}

}  // namespace hadal::cuda
