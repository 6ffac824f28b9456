// Wraps the PTX for matrix products of a warp (mma.sync) and for moving 8×8 matrices between registers and
// shared memory (ldmatrix, stmatrix, movmatrix). It also computes where the elements of a tile with the
// 128-byte swizzle lie. common/wgmma.cuh has the products of a warpgroup.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/float_types.h"

namespace hadal::cuda {

__device__ __forceinline__ uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
// Holds 32 bytes of one row, from two loads. They are a lane's share of an operand of four 16-bit products,
// each over 16 of k.
struct RowPiece {
  uint4 half[2];
};
__device__ __forceinline__ uint32_t word(const RowPiece& piece, int i) {
  return word(piece.half[i / 4], i % 4);
}

// Adds a · b to d in float32. Operand a is 16 rows × 16 of k, and b is 16 of k × 8 columns, both of type T
// (bf16 or f16).
template <typename T>
__device__ __forceinline__ void mma_16_bit(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                           uint32_t b0, uint32_t b1) {
  static_assert(std::is_same_v<T, bf16> || std::is_same_v<T, f16>);
  if constexpr (std::is_same_v<T, bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}
// Does the same for int8 operands over 32 of k, with exact int32 sums.
__device__ __forceinline__ void mma_s8(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                       uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Loads four 8×8 matrices of 16-bit values from shared memory. Lanes and words have the meaning that they
// have in store_matrix_x4.
__device__ __forceinline__ void load_matrix_x4(uint32_t address, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
// Stores four 8×8 matrices of 16-bit values in shared memory. Lane l gives the address of row l % 8 of matrix
// l / 8. Its word i holds the two values of matrix i at row l / 4, columns 2·(l % 4) and 2·(l % 4) + 1, which
// is the layout of accumulators.
__device__ __forceinline__ void store_matrix_x4(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2,
                                                uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0),
               "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}
// Does the same with each matrix transposed: column c of matrix `matrix` is stored at the address of lane 8 ·
// matrix + c.
__device__ __forceinline__ void store_matrix_x4_transposed(uint32_t address, uint32_t r0, uint32_t r1,
                                                           uint32_t r2, uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}
// Loads four matrices that store_matrix_x4_transposed stored.
__device__ __forceinline__ void load_matrix_x4_transposed(uint32_t address, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
// Transposes one 8×8 matrix of 16-bit values in the registers of a warp, in the layout of accumulators.
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t a) {
  uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
  return d;
}

// Returns the byte offset of the 16-byte chunk `chunk` (0…7) of row `row` in a tile of 128-byte rows with the
// 128-byte swizzle.
__device__ __forceinline__ uint32_t swizzle_128(uint32_t row, uint32_t chunk) {
  return row * 128 + ((chunk ^ (row & 7U)) << 4);
}

}  // namespace hadal::cuda
