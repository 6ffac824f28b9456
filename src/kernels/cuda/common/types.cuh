// Converts the storage types of base/float_types.h in device code, and holds wide loads.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "base/float_types.h"
#include "kernels/params/linear.h"

namespace hadal::cuda {

inline constexpr float kLn2 = 0.6931471805599453F;

// This is the type of the 16-bit rows that are multiplied with weights of type kType.
template <WeightType kType>
using Row16 = std::conditional_t<kType == WeightType::kF16, f16, bf16>;

static_assert(sizeof(__nv_bfloat16) == sizeof(bf16) && sizeof(__nv_fp8_e4m3) == sizeof(fp8_e4m3));

__device__ __forceinline__ const __nv_bfloat16* native(const bf16* p) {
  return reinterpret_cast<const __nv_bfloat16*>(p);
}
__device__ __forceinline__ __nv_bfloat16* native(bf16* p) {
  return reinterpret_cast<__nv_bfloat16*>(p);
}

__device__ __forceinline__ float to_f32(bf16 v) {
  return __uint_as_float(static_cast<uint32_t>(v.bits) << 16);
}
__device__ __forceinline__ float to_f32(f16 v) {
  return __half2float(__ushort_as_half(v.bits));
}
__device__ __forceinline__ bf16 to_bf16_rn(float v) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(v))};
}
// Rounds to T (bf16 or f16); values that are too large become infinity.
template <typename T>
__device__ __forceinline__ T round_to(float v) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  if constexpr (std::is_same_v<T, f16>) {
    return {__half_as_ushort(__float2half_rn(v))};
  } else {
    return to_bf16_rn(v);
  }
}
// Returns two floats as packed bf16, with `low` in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 packed = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&packed);
}
// Returns the same for T (bf16 or f16).
template <typename T>
__device__ __forceinline__ uint32_t pack_two(float low, float high) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  if constexpr (std::is_same_v<T, f16>) {
    const __half2 packed = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&packed);
  } else {
    return pack_bf16(low, high);
  }
}
__device__ __forceinline__ float2 unpack_bf16(uint32_t packed) {
  return {__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000U)};
}
template <typename T>
__device__ __forceinline__ float2 unpack_two(uint32_t packed) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  if constexpr (std::is_same_v<T, f16>) {
    return __half22float2(*reinterpret_cast<const __half2*>(&packed));
  } else {
    return unpack_bf16(packed);
  }
}

// Returns value i of rows of 16 bits (float16 or bf16), for plain kernels.
__device__ __forceinline__ float load_16_bit(const void* rows, int64_t i, bool is_f16) {
  return is_f16 ? to_f32(static_cast<const f16*>(rows)[i]) : to_f32(static_cast<const bf16*>(rows)[i]);
}
__device__ __forceinline__ void store_16_bit(void* rows, int64_t i, float value, bool is_f16) {
  static_cast<uint16_t*>(rows)[i] = is_f16 ? round_to<f16>(value).bits : round_to<bf16>(value).bits;
}

// Rounds to the nearest e4m3, saturating at ±448.
__device__ __forceinline__ fp8_e4m3 to_e4m3(float v) {
  return {static_cast<uint8_t>(__nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3))};
}
__device__ __forceinline__ float to_f32(fp8_e4m3 v) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(v.bits, __NV_E4M3)));
}
__device__ __forceinline__ fp8_e5m2 to_e5m2(float v) {
  return {static_cast<uint8_t>(__nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E5M2))};
}
__device__ __forceinline__ float to_f32(fp8_e5m2 v) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(v.bits, __NV_E5M2)));
}

// Loads 16 bytes of weights, which nothing writes while a kernel runs. They are not kept in the L1.
__device__ __forceinline__ uint4 load_stream(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
// Loads 16 bytes that an earlier kernel wrote and that are read once, after pdl_wait(). It does not use
// ld.global.nc, because the earlier kernel may still have been writing when this kernel started.
__device__ __forceinline__ uint4 load_once(const void* p) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

}  // namespace hadal::cuda
