// Converts between stored types with the same bits as the host (base/float_types.h), also for NaN.
#pragma once

#include <type_traits>

#include "kernels/cuda/common/types.cuh"

namespace hadal::cuda {

__device__ __forceinline__ float widened(float v) {
  return v;
}
__device__ __forceinline__ float widened(f16 v) {
  return __half2float(__ushort_as_half(v.bits));
}
__device__ __forceinline__ float widened(bf16 v) {
  return to_f32(v);
}

template <typename T>
__device__ __forceinline__ T rounded(float v) {
  if constexpr (std::is_same_v<T, float>) {
    return v;
  } else if constexpr (std::is_same_v<T, f16>) {
    return {__half_as_ushort(__float2half_rn(v))};
  } else {
    const uint32_t u = __float_as_uint(v);
    if ((u & 0x7fffffffU) > 0x7f800000U) return {static_cast<uint16_t>((u >> 16) | 0x40U)};
    return {static_cast<uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16)};
  }
}

}  // namespace hadal::cuda
