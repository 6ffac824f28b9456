// Wraps the PTX for warpgroup matrix products (wgmma, sm_90a): D[64, N] += A[64, K] · B[K, N] with float32
// accumulators in registers.
//
// Operands in shared memory are tiles with the 128-byte swizzle, exactly as a TMA load with
// CU_TENSOR_MAP_SWIZZLE_128B writes them, at an address that is a multiple of 1024:
// - K-major (the product's k index is contiguous): tile [rows][128 bytes], 64 bf16 or 128 e4m3 of k per row.
//   Eight rows are one swizzle atom of 1024 bytes; the stride between atoms (SBO) is 1024. The leading offset
//   (LBO) is not used, because a row never spans more than one atom. The next 32 bytes of k (one instruction:
//   16 bf16, 32 e4m3) are 32 bytes further in the start address; the hardware applies the swizzle to address
//   bits, so this is right inside an atom. The next 64 rows are 8192 bytes further on. A longer k needs
//   several tiles.
// - MN-major (bf16 only; the m or n index is contiguous, "transposed"): tile [k rows][128 bytes], 64 bf16 of
//   m or n per row. Eight k rows are one atom; the stride between the atoms along k (SBO) is 1024; the stride
//   to the next 64 of m or n (LBO) is the size of a whole tile, k rows · 128 bytes. The next 16 of k are 2048
//   bytes further on.
//
// Accumulators of thread t of the warpgroup (warp w = t / 32, lane l = t % 32), in registers d[N / 2]:
//   d[4·j + 2·h + c] is row 16·w + 8·h + l / 4, column 8·j + 2·(l % 4) + c        (h, c in {0, 1}, j < N / 8)
// A in registers (wgmma_*_rs), four 32-bit words for one instruction: word 2·p + h holds row 16·w + 8·h + l /
//   4; bf16: columns 8·p + 2·(l % 4) and the next one; e4m3: columns 16·p + 4·(l % 4) … + 3.
// So the accumulators of the columns 16·i … 16·i + 15 (d[8·i] … + 7), packed in order as bf16, are A for the
// next product.
//
// All 128 threads call these functions in this order: wgmma_fence(); products; wgmma_commit();
// wgmma_wait<n>(). Registers of products in flight must not be accessed before the wait; wgmma_pin(d) keeps
// the compiler from moving accesses across it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/float_types.h"
#include "kernels/cuda/common/mbarrier.cuh"

namespace hadal::cuda {

// Call this before the first product, and after ordinary writes to accumulators or A registers.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending committed groups are in flight.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving uses of these registers across this point.
template <int kCount>
__device__ __forceinline__ void wgmma_pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i]));
}
template <int kCount>
__device__ __forceinline__ void wgmma_pin(uint32_t (&a)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(a[i]));
}

// Packs a matrix descriptor: bits 0–13 start address / 16, 16–29 LBO / 16, 32–45 SBO / 16, 49–51 base offset
// (0: tiles begin at multiples of 1024), 62–63 swizzle (1: 128 bytes).
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address, uint32_t lbo_bytes,
                                                     uint32_t sbo_bytes) {
  return (uint64_t{1} << 62) | (static_cast<uint64_t>(sbo_bytes >> 4) << 32) |
         (static_cast<uint64_t>(lbo_bytes >> 4) << 16) | ((address & 0x3FFFFU) >> 4);
}
// `tile` may also point 32·i bytes into a row of the first atom (a step along k) or at a multiple of 8 rows.
__device__ __forceinline__ uint64_t wgmma_k_major(const void* tile) {
  return wgmma_descriptor(shared_address(tile), 16, 1024);
}
// `tile_bytes` is the number of the tile's k rows times 128, which is the distance to the next 64 of m or n.
// `tile` may also point at a multiple of 8 k rows.
__device__ __forceinline__ uint64_t wgmma_mn_major(const void* tile, uint32_t tile_bytes) {
  return wgmma_descriptor(shared_address(tile), tile_bytes, 1024);
}
// Returns the descriptor of the tile that lies `bytes` further on.
__device__ __forceinline__ uint64_t wgmma_advance(uint64_t descriptor, uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

// The first returns the low word of a K-major descriptor; the second completes it with the high word, which
// is constant. The low word of a tile `bytes` further on is low + bytes / 16, a 32-bit addition.
__device__ __forceinline__ uint32_t wgmma_k_major_low(const void* tile) {
  return static_cast<uint32_t>(wgmma_k_major(tile));
}
__device__ __forceinline__ uint64_t wgmma_k_major_of(uint32_t low) {
  return (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32) | low;
}

// These macros list the operands and their numbers for each N; each product below is one instruction.

// clang-format off
#define HADAL_WGMMA_REGS_8 "%0, %1, %2, %3"
#define HADAL_WGMMA_OUT_8 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define HADAL_WGMMA_REGS_16 HADAL_WGMMA_REGS_8 ", %4, %5, %6, %7"
#define HADAL_WGMMA_OUT_16 HADAL_WGMMA_OUT_8, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define HADAL_WGMMA_REGS_24 HADAL_WGMMA_REGS_16 ", %8, %9, %10, %11"
#define HADAL_WGMMA_OUT_24 HADAL_WGMMA_OUT_16, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define HADAL_WGMMA_REGS_32 HADAL_WGMMA_REGS_24 ", %12, %13, %14, %15"
#define HADAL_WGMMA_OUT_32 HADAL_WGMMA_OUT_24, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define HADAL_WGMMA_REGS_40 HADAL_WGMMA_REGS_32 ", %16, %17, %18, %19"
#define HADAL_WGMMA_OUT_40 HADAL_WGMMA_OUT_32, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define HADAL_WGMMA_REGS_48 HADAL_WGMMA_REGS_40 ", %20, %21, %22, %23"
#define HADAL_WGMMA_OUT_48 HADAL_WGMMA_OUT_40, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define HADAL_WGMMA_REGS_56 HADAL_WGMMA_REGS_48 ", %24, %25, %26, %27"
#define HADAL_WGMMA_OUT_56 HADAL_WGMMA_OUT_48, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define HADAL_WGMMA_REGS_64 HADAL_WGMMA_REGS_56 ", %28, %29, %30, %31"
#define HADAL_WGMMA_OUT_64 HADAL_WGMMA_OUT_56, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define HADAL_WGMMA_REGS_72 HADAL_WGMMA_REGS_64 ", %32, %33, %34, %35"
#define HADAL_WGMMA_OUT_72 HADAL_WGMMA_OUT_64, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define HADAL_WGMMA_REGS_80 HADAL_WGMMA_REGS_72 ", %36, %37, %38, %39"
#define HADAL_WGMMA_OUT_80 HADAL_WGMMA_OUT_72, "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define HADAL_WGMMA_REGS_88 HADAL_WGMMA_REGS_80 ", %40, %41, %42, %43"
#define HADAL_WGMMA_OUT_88 HADAL_WGMMA_OUT_80, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define HADAL_WGMMA_REGS_96 HADAL_WGMMA_REGS_88 ", %44, %45, %46, %47"
#define HADAL_WGMMA_OUT_96 HADAL_WGMMA_OUT_88, "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define HADAL_WGMMA_REGS_104 HADAL_WGMMA_REGS_96 ", %48, %49, %50, %51"
#define HADAL_WGMMA_OUT_104 HADAL_WGMMA_OUT_96, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define HADAL_WGMMA_REGS_112 HADAL_WGMMA_REGS_104 ", %52, %53, %54, %55"
#define HADAL_WGMMA_OUT_112 HADAL_WGMMA_OUT_104, "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define HADAL_WGMMA_REGS_120 HADAL_WGMMA_REGS_112 ", %56, %57, %58, %59"
#define HADAL_WGMMA_OUT_120 HADAL_WGMMA_OUT_112, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define HADAL_WGMMA_REGS_128 HADAL_WGMMA_REGS_120 ", %60, %61, %62, %63"
#define HADAL_WGMMA_OUT_128 HADAL_WGMMA_OUT_120, "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define HADAL_WGMMA_REGS_136 HADAL_WGMMA_REGS_128 ", %64, %65, %66, %67"
#define HADAL_WGMMA_OUT_136 HADAL_WGMMA_OUT_128, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define HADAL_WGMMA_REGS_144 HADAL_WGMMA_REGS_136 ", %68, %69, %70, %71"
#define HADAL_WGMMA_OUT_144 HADAL_WGMMA_OUT_136, "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define HADAL_WGMMA_REGS_152 HADAL_WGMMA_REGS_144 ", %72, %73, %74, %75"
#define HADAL_WGMMA_OUT_152 HADAL_WGMMA_OUT_144, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define HADAL_WGMMA_REGS_160 HADAL_WGMMA_REGS_152 ", %76, %77, %78, %79"
#define HADAL_WGMMA_OUT_160 HADAL_WGMMA_OUT_152, "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define HADAL_WGMMA_REGS_168 HADAL_WGMMA_REGS_160 ", %80, %81, %82, %83"
#define HADAL_WGMMA_OUT_168 HADAL_WGMMA_OUT_160, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define HADAL_WGMMA_REGS_176 HADAL_WGMMA_REGS_168 ", %84, %85, %86, %87"
#define HADAL_WGMMA_OUT_176 HADAL_WGMMA_OUT_168, "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define HADAL_WGMMA_REGS_184 HADAL_WGMMA_REGS_176 ", %88, %89, %90, %91"
#define HADAL_WGMMA_OUT_184 HADAL_WGMMA_OUT_176, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define HADAL_WGMMA_REGS_192 HADAL_WGMMA_REGS_184 ", %92, %93, %94, %95"
#define HADAL_WGMMA_OUT_192 HADAL_WGMMA_OUT_184, "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define HADAL_WGMMA_REGS_200 HADAL_WGMMA_REGS_192 ", %96, %97, %98, %99"
#define HADAL_WGMMA_OUT_200 HADAL_WGMMA_OUT_192, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
#define HADAL_WGMMA_REGS_208 HADAL_WGMMA_REGS_200 ", %100, %101, %102, %103"
#define HADAL_WGMMA_OUT_208 HADAL_WGMMA_OUT_200, "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define HADAL_WGMMA_REGS_216 HADAL_WGMMA_REGS_208 ", %104, %105, %106, %107"
#define HADAL_WGMMA_OUT_216 HADAL_WGMMA_OUT_208, "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107])
#define HADAL_WGMMA_REGS_224 HADAL_WGMMA_REGS_216 ", %108, %109, %110, %111"
#define HADAL_WGMMA_OUT_224 HADAL_WGMMA_OUT_216, "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define HADAL_WGMMA_REGS_232 HADAL_WGMMA_REGS_224 ", %112, %113, %114, %115"
#define HADAL_WGMMA_OUT_232 HADAL_WGMMA_OUT_224, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115])
#define HADAL_WGMMA_REGS_240 HADAL_WGMMA_REGS_232 ", %116, %117, %118, %119"
#define HADAL_WGMMA_OUT_240 HADAL_WGMMA_OUT_232, "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define HADAL_WGMMA_REGS_248 HADAL_WGMMA_REGS_240 ", %120, %121, %122, %123"
#define HADAL_WGMMA_OUT_248 HADAL_WGMMA_OUT_240, "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123])
#define HADAL_WGMMA_REGS_256 HADAL_WGMMA_REGS_248 ", %124, %125, %126, %127"
#define HADAL_WGMMA_OUT_256 HADAL_WGMMA_OUT_248, "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
// X(N, numbers of the first seven operands after the accumulators)
#define HADAL_WGMMA_WIDTHS(X) \
  X(8, 4, 5, 6, 7, 8, 9, 10) X(16, 8, 9, 10, 11, 12, 13, 14) \
  X(24, 12, 13, 14, 15, 16, 17, 18) X(32, 16, 17, 18, 19, 20, 21, 22) \
  X(40, 20, 21, 22, 23, 24, 25, 26) X(48, 24, 25, 26, 27, 28, 29, 30) \
  X(56, 28, 29, 30, 31, 32, 33, 34) X(64, 32, 33, 34, 35, 36, 37, 38) \
  X(72, 36, 37, 38, 39, 40, 41, 42) X(80, 40, 41, 42, 43, 44, 45, 46) \
  X(88, 44, 45, 46, 47, 48, 49, 50) X(96, 48, 49, 50, 51, 52, 53, 54) \
  X(104, 52, 53, 54, 55, 56, 57, 58) X(112, 56, 57, 58, 59, 60, 61, 62) \
  X(120, 60, 61, 62, 63, 64, 65, 66) X(128, 64, 65, 66, 67, 68, 69, 70) \
  X(136, 68, 69, 70, 71, 72, 73, 74) X(144, 72, 73, 74, 75, 76, 77, 78) \
  X(152, 76, 77, 78, 79, 80, 81, 82) X(160, 80, 81, 82, 83, 84, 85, 86) \
  X(168, 84, 85, 86, 87, 88, 89, 90) X(176, 88, 89, 90, 91, 92, 93, 94) \
  X(184, 92, 93, 94, 95, 96, 97, 98) X(192, 96, 97, 98, 99, 100, 101, 102) \
  X(200, 100, 101, 102, 103, 104, 105, 106) X(208, 104, 105, 106, 107, 108, 109, 110) \
  X(216, 108, 109, 110, 111, 112, 113, 114) X(224, 112, 113, 114, 115, 116, 117, 118) \
  X(232, 116, 117, 118, 119, 120, 121, 122) X(240, 120, 121, 122, 123, 124, 125, 126) \
  X(248, 124, 125, 126, 127, 128, 129, 130) X(256, 128, 129, 130, 131, 132, 133, 134)

#define HADAL_WGMMA_BF16_SS(N, a, b, p, ta, tb, u0, u1)                                                    \
  if constexpr (kN == N)                                                                                  \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p ", 0;\n"                                         \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" HADAL_WGMMA_REGS_##N "}, "  \
                 "%" #a ", %" #b ", p, 1, 1, %" #ta ", %" #tb ";\n}"                                      \
                 : HADAL_WGMMA_OUT_##N                                                                    \
                 : "l"(a_desc), "l"(b_desc), "r"(static_cast<int32_t>(accumulate)),                       \
                   "n"(kAMnMajor ? 1 : 0), "n"(kBMnMajor ? 1 : 0));
#define HADAL_WGMMA_E4M3_SS(N, a, b, p, u0, u1, u2, u3)                                                   \
  if constexpr (kN == N)                                                                                  \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p ", 0;\n"                                         \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" HADAL_WGMMA_REGS_##N "}, "  \
                 "%" #a ", %" #b ", p, 1, 1;\n}"                                                          \
                 : HADAL_WGMMA_OUT_##N                                                                    \
                 : "l"(a_desc), "l"(b_desc), "r"(static_cast<int32_t>(accumulate)));
#define HADAL_WGMMA_BF16_RS(N, a0, a1, a2, a3, b, p, tb)                                                  \
  if constexpr (kN == N)                                                                                  \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p ", 0;\n"                                         \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" HADAL_WGMMA_REGS_##N "}, "  \
                 "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", p, 1, 1, %" #tb ";\n}"                  \
                 : HADAL_WGMMA_OUT_##N                                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_desc),                               \
                   "r"(static_cast<int32_t>(accumulate)), "n"(kBMnMajor ? 1 : 0));
#define HADAL_WGMMA_F16_SS(N, a, b, p, ta, tb, u0, u1)                                                    \
  if constexpr (kN == N)                                                                                  \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p ", 0;\n"                                         \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" HADAL_WGMMA_REGS_##N "}, "  \
                 "%" #a ", %" #b ", p, 1, 1, %" #ta ", %" #tb ";\n}"                                      \
                 : HADAL_WGMMA_OUT_##N                                                                    \
                 : "l"(a_desc), "l"(b_desc), "r"(static_cast<int32_t>(accumulate)),                       \
                   "n"(kAMnMajor ? 1 : 0), "n"(kBMnMajor ? 1 : 0));
#define HADAL_WGMMA_F16_RS(N, a0, a1, a2, a3, b, p, tb)                                                   \
  if constexpr (kN == N)                                                                                  \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p ", 0;\n"                                         \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" HADAL_WGMMA_REGS_##N "}, "  \
                 "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", p, 1, 1, %" #tb ";\n}"                  \
                 : HADAL_WGMMA_OUT_##N                                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_desc),                               \
                   "r"(static_cast<int32_t>(accumulate)), "n"(kBMnMajor ? 1 : 0));
#define HADAL_WGMMA_E4M3_RS(N, a0, a1, a2, a3, b, p, u0)                                                  \
  if constexpr (kN == N)                                                                                  \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p ", 0;\n"                                         \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" HADAL_WGMMA_REGS_##N "}, "  \
                 "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", p, 1, 1;\n}"                         \
                 : HADAL_WGMMA_OUT_##N                                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_desc),                               \
                   "r"(static_cast<int32_t>(accumulate)));
#define HADAL_WGMMA_E5M2_E4M3_SS(N, a, b, p, u0, u1, u2, u3)                                              \
  if constexpr (kN == N)                                                                                  \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p ", 0;\n"                                         \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e5m2.e4m3 {" HADAL_WGMMA_REGS_##N "}, "  \
                 "%" #a ", %" #b ", p, 1, 1;\n}"                                                          \
                 : HADAL_WGMMA_OUT_##N                                                                    \
                 : "l"(a_desc), "l"(b_desc), "r"(static_cast<int32_t>(accumulate)));
#define HADAL_WGMMA_E5M2_E4M3_RS(N, a0, a1, a2, a3, b, p, u0)                                             \
  if constexpr (kN == N)                                                                                  \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p ", 0;\n"                                         \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e5m2.e4m3 {" HADAL_WGMMA_REGS_##N "}, "  \
                 "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", p, 1, 1;\n}"                         \
                 : HADAL_WGMMA_OUT_##N                                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_desc),                               \
                   "r"(static_cast<int32_t>(accumulate)));
// clang-format on

// Computes D[64, kN] (+)= A · B with 16 of k, both operands from shared memory. If `accumulate` is false, D
// starts from zero.
template <int kN, bool kAMnMajor = false, bool kBMnMajor = false>
__device__ __forceinline__ void wgmma_bf16(float (&d)[kN / 2], uint64_t a_desc, uint64_t b_desc,
                                           bool accumulate) {
  static_assert(kN % 8 == 0 && kN >= 8 && kN <= 256);
  HADAL_WGMMA_WIDTHS(HADAL_WGMMA_BF16_SS)
}

// Does the same with A from registers.
template <int kN, bool kBMnMajor = false>
__device__ __forceinline__ void wgmma_bf16_rs(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b_desc,
                                              bool accumulate) {
  static_assert(kN % 8 == 0 && kN >= 8 && kN <= 256);
  HADAL_WGMMA_WIDTHS(HADAL_WGMMA_BF16_RS)
}

// These two do the same with float16 operands.
template <int kN, bool kAMnMajor = false, bool kBMnMajor = false>
__device__ __forceinline__ void wgmma_f16(float (&d)[kN / 2], uint64_t a_desc, uint64_t b_desc,
                                          bool accumulate) {
  static_assert(kN % 8 == 0 && kN >= 8 && kN <= 256);
  HADAL_WGMMA_WIDTHS(HADAL_WGMMA_F16_SS)
}
template <int kN, bool kBMnMajor = false>
__device__ __forceinline__ void wgmma_f16_rs(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b_desc,
                                             bool accumulate) {
  static_assert(kN % 8 == 0 && kN >= 8 && kN <= 256);
  HADAL_WGMMA_WIDTHS(HADAL_WGMMA_F16_RS)
}

// These two do the same with operands of type T (bf16 or f16).
template <typename T, int kN, bool kAMnMajor = false, bool kBMnMajor = false>
__device__ __forceinline__ void wgmma_16_bit(float (&d)[kN / 2], uint64_t a_desc, uint64_t b_desc,
                                             bool accumulate) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  if constexpr (std::is_same_v<T, f16>) {
    wgmma_f16<kN, kAMnMajor, kBMnMajor>(d, a_desc, b_desc, accumulate);
  } else {
    wgmma_bf16<kN, kAMnMajor, kBMnMajor>(d, a_desc, b_desc, accumulate);
  }
}
template <typename T, int kN, bool kBMnMajor = false>
__device__ __forceinline__ void wgmma_16_bit_rs(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b_desc,
                                                bool accumulate) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  if constexpr (std::is_same_v<T, f16>) {
    wgmma_f16_rs<kN, kBMnMajor>(d, a, b_desc, accumulate);
  } else {
    wgmma_bf16_rs<kN, kBMnMajor>(d, a, b_desc, accumulate);
  }
}

// These two compute D[64, kN] (+)= A · B with 32 of k for K-major operands of e4m3. The tensor cores keep
// about 14 bits of such a sum, so callers add the partial sums up in float32 after every 128 of k.
template <int kN>
__device__ __forceinline__ void wgmma_e4m3(float (&d)[kN / 2], uint64_t a_desc, uint64_t b_desc,
                                           bool accumulate) {
  static_assert(kN % 8 == 0 && kN >= 8 && kN <= 256);
  HADAL_WGMMA_WIDTHS(HADAL_WGMMA_E4M3_SS)
}

template <int kN>
__device__ __forceinline__ void wgmma_e4m3_rs(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b_desc,
                                              bool accumulate) {
  static_assert(kN % 8 == 0 && kN >= 8 && kN <= 256);
  HADAL_WGMMA_WIDTHS(HADAL_WGMMA_E4M3_RS)
}

// These two do the same with A of e5m2 and B of e4m3.
template <int kN>
__device__ __forceinline__ void wgmma_e5m2_e4m3(float (&d)[kN / 2], uint64_t a_desc, uint64_t b_desc,
                                                bool accumulate) {
  static_assert(kN % 8 == 0 && kN >= 8 && kN <= 256);
  HADAL_WGMMA_WIDTHS(HADAL_WGMMA_E5M2_E4M3_SS)
}
template <int kN>
__device__ __forceinline__ void wgmma_e5m2_e4m3_rs(float (&d)[kN / 2], const uint32_t (&a)[4],
                                                   uint64_t b_desc, bool accumulate) {
  static_assert(kN % 8 == 0 && kN >= 8 && kN <= 256);
  HADAL_WGMMA_WIDTHS(HADAL_WGMMA_E5M2_E4M3_RS)
}

}  // namespace hadal::cuda
