// Holds the parts that the tiled kernels for the absorbed products share: they widen FP8 codes to bf16, round
// sums to FP8 codes, and load a head's weights into shared memory in bf16, as wgmma reads them.
#pragma once

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/matrix.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/gemm/variants.h"

namespace hadal::cuda::absorbed {

// Converts two e4m3 codes (the low 16 bits) to packed bf16, exactly.
__device__ __forceinline__ uint32_t widen_codes(uint32_t codes) {
  const __half2_raw raw =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes & 0xffffU), __NV_E4M3);
  const float2 values = __half22float2(__half2(raw));
  return pack_bf16(values.x, values.y);
}

// Returns 1 / scale, rounded. The result is finite even if a group's largest magnitude is close to zero.
__device__ __forceinline__ float inverse_scale(float scale) {
  return fminf(__frcp_rn(scale), 0x1.fffffep127F);
}
// Returns x / scale and next / scale as e4m3, the first in the low byte. Each quotient is first approximated
// by a product with the inverse. A correction by its error then makes it correctly rounded, as the result of
// `/` is.
__device__ __forceinline__ uint16_t quotients_to_e4m3(float x, float next, float scale, float inverse) {
  const auto quotient = [&](float value) {
    const float first = value * inverse;
    return fmaf(fmaf(-first, scale, value), inverse, first);
  };
  return __nv_cvt_float2_to_fp8x2({quotient(x), quotient(next)}, __NV_SATFINITE, __NV_E4M3);
}

// The first loads a piece of 16 codes, (row, chunk) of FP8 weights in [kRows][128 codes]. The second widens a
// piece to bf16 and stores it in tiles [2][kRows][128 bytes]. Both layouts have the 128-byte swizzle.
// Neighbouring threads have neighbouring rows, so there are no bank conflicts.
__device__ __forceinline__ uint4 load_codes(const uint8_t* codes, int row, int chunk) {
  return *reinterpret_cast<const uint4*>(codes + swizzle_128(row, chunk));
}
template <int kRows>
__device__ __forceinline__ void store_widened(uint8_t* tiles, int row, int chunk, const uint4& v) {
  uint8_t* tile = tiles + chunk / 4 * (kRows * 128);
  *reinterpret_cast<uint4*>(tile + swizzle_128(row, chunk % 4 * 2)) = {
      widen_codes(v.x), widen_codes(v.x >> 16), widen_codes(v.y), widen_codes(v.y >> 16)};
  *reinterpret_cast<uint4*>(tile + swizzle_128(row, chunk % 4 * 2 + 1)) = {
      widen_codes(v.z), widen_codes(v.z >> 16), widen_codes(v.w), widen_codes(v.w >> 16)};
}

// Copies rows of 16-bit weights to tiles [kWidth / 64][kRows][128 bytes] with the copy engine. One thread
// calls this. Each part of 64 of k completes on its own barrier, or all parts complete on one barrier
// (kBarriers = 1).
template <int kRows, int kWidth, int kBarriers>
__device__ __forceinline__ void load_weights(uint8_t* tiles, const CUtensorMap* map, Mbarrier* barriers,
                                             int row0) {
  constexpr int kParts = kWidth / 64;
  static_assert(kBarriers == 1 || kBarriers == kParts);
#pragma unroll 1
  for (int part = 0; part < kParts; ++part) {
    Mbarrier* barrier = barriers + (kBarriers == 1 ? 0 : part);
    if (kBarriers > 1 || part == 0) mbarrier_arrive_expect_tx(barrier, kRows * kWidth * 2 / kBarriers);
    tma_load_2d(tiles + part * (kRows * 128), map, barrier, part * 64, row0);
  }
}

}  // namespace hadal::cuda::absorbed
