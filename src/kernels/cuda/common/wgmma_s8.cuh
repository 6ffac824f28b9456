// Wraps the PTX for integer warpgroup products (wgmma, sm_90a): D[64, N] += A[64, 32] · B[32, N] of int8 with
// exact int32 sums in registers. Operands, layouts and order of use are those of common/wgmma.cuh; 32 int8 of
// k are 32 bytes.
//
// The magnitude of a sum is at most 2^14 · k, which int32 holds up to k = 131,072.
#pragma once

#include "kernels/cuda/common/wgmma.cuh"

namespace hadal::cuda {

template <int kCount>
__device__ __forceinline__ void wgmma_pin(int32_t (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(d[i]));
}

// clang-format off
#define HADAL_S8_OUT_4(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define HADAL_S8_OUT_8(i) HADAL_S8_OUT_4(i), HADAL_S8_OUT_4(i + 4)
#define HADAL_S8_OUT_16(i) HADAL_S8_OUT_8(i), HADAL_S8_OUT_8(i + 8)
#define HADAL_S8_OUT_32(i) HADAL_S8_OUT_16(i), HADAL_S8_OUT_16(i + 16)
#define HADAL_S8_OUT_64(i) HADAL_S8_OUT_32(i), HADAL_S8_OUT_32(i + 32)
#define HADAL_S8_OUT_96(i) HADAL_S8_OUT_64(i), HADAL_S8_OUT_32(i + 64)
#define HADAL_S8_OUT_128(i) HADAL_S8_OUT_64(i), HADAL_S8_OUT_64(i + 64)
// The arguments are N, the number of registers N / 2, and the numbers of the three operands after the
// registers.
#define HADAL_WGMMA_S8(N, count, a, b, p)                                                               \
  if constexpr (kN == N)                                                                                \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p ", 0;\n"                                       \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.s32.s8.s8 {" HADAL_WGMMA_REGS_##N "}, "    \
                 "%" #a ", %" #b ", p;\n}"                                                              \
                 : HADAL_S8_OUT_##count(0)                                                              \
                 : "l"(a_desc), "l"(b_desc), "r"(static_cast<int32_t>(accumulate)));
// clang-format on

// Computes D[64, kN] (+)= A · B with 32 of k for K-major int8 operands in shared memory. If `accumulate` is
// false, D starts from zero.
template <int kN>
__device__ __forceinline__ void wgmma_s8(int32_t (&d)[kN / 2], uint64_t a_desc, uint64_t b_desc,
                                         bool accumulate) {
  static_assert(kN == 8 || kN == 16 || kN == 32 || kN == 64 || kN == 128 || kN == 192 || kN == 256);
  HADAL_WGMMA_S8(8, 4, 4, 5, 6)
  HADAL_WGMMA_S8(16, 8, 8, 9, 10)
  HADAL_WGMMA_S8(32, 16, 16, 17, 18)
  HADAL_WGMMA_S8(64, 32, 32, 33, 34)
  HADAL_WGMMA_S8(128, 64, 64, 65, 66)
  HADAL_WGMMA_S8(192, 96, 96, 97, 98)
  HADAL_WGMMA_S8(256, 128, 128, 129, 130)
}

#undef HADAL_WGMMA_S8
#undef HADAL_S8_OUT_4
#undef HADAL_S8_OUT_8
#undef HADAL_S8_OUT_16
#undef HADAL_S8_OUT_32
#undef HADAL_S8_OUT_64
#undef HADAL_S8_OUT_96
#undef HADAL_S8_OUT_128

}  // namespace hadal::cuda
