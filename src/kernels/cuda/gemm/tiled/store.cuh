// Stores a wave's sums of gemm/tiled/kernel.cuh in y as bf16, and scales them first if that has not been
// done. The values pass through shared memory of the warp's own, so that 8 lanes write 128 bytes of a row.
#pragma once

#include "kernels/cuda/common/matrix.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/gemm/tiled/config.cuh"
#include "kernels/cuda/gemm/tiled/scales.cuh"

namespace hadal::cuda::wgmma_gemm {

// Writes columns 64·part … of the warp's 16 rows into `buffer` (2 KB, rows of 128 bytes with the 128-byte
// swizzle).
template <class C>
__device__ __forceinline__ void stage_part(uint8_t* buffer, const typename C::Sum (&sums)[C::kSums],
                                           const EndScales<C>& scales, int wave, int part, int lane) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (64 * part + 16 * j >= C::kColumns) break;
    float v[8];
    finish8<C>(sums, wave, 4 * part + j, scales, v);
    store_matrix_x4(shared_address(buffer) + swizzle_128(lane % 16, 2 * j + lane / 16), pack_bf16(v[0], v[1]),
                    pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
  }
}

// Stores the warp's rows `row` … + 15 (if below row_end) and columns n_begin … + kColumns − 1 (if below n).
// The warp does not wait for the stores.
template <class C>
__device__ __forceinline__ void store_rows(const WgmmaGemmParams& p, uint8_t* buffer,
                                           const typename C::Sum (&sums)[C::kSums],
                                           const EndScales<C>& scales, int wave, int row, int row_end,
                                           int n_begin, int lane) {
  if (row >= row_end) return;
  const int first = row + lane / 8;
  const int chunk = lane % 8;
  bf16* y = p.y + static_cast<int64_t>(first) * p.y_stride + n_begin + 8 * chunk;
#pragma unroll
  for (int part = 0; part < (C::kColumns + 63) / 64; ++part) {
    __syncwarp();  // the previous part has been read
    stage_part<C>(buffer, sums, scales, wave, part, lane);
    __syncwarp();
    uint4 values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      values[i] = *reinterpret_cast<const uint4*>(buffer + swizzle_128(lane / 8 + 4 * i, chunk));
    const bool inside = n_begin + 64 * part + 8 * chunk < p.n && 64 * part + 8 * chunk < C::kColumns;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (inside && first + 4 * i < row_end)
        *reinterpret_cast<uint4*>(y + static_cast<int64_t>(4 * i) * p.y_stride + 64 * part) = values[i];
    }
  }
}

// Does the same with the copy engine if all 16 rows are the expert's, or if the expert's rows are the array's
// last; otherwise it uses ordinary stores. The copy engine stores a part while the warp converts the next
// part to bf16. Parts use the warp's buffers in turn: its own and, with kHold, its rows of x in the tile's
// last stage (`held` points to those of wave 0).
template <class C>
__device__ __forceinline__ void copy_rows_out(const CUtensorMap& y_map, const WgmmaGemmParams& p,
                                              uint8_t* own, uint8_t* held,
                                              const typename C::Sum (&sums)[C::kSums],
                                              const EndScales<C>& scales, int wave, int row, int row_end,
                                              int n_begin, int lane) {
  if (row >= row_end) return;
  constexpr int kParts = C::kColumns / 64;
  constexpr int kBuffers = C::kHold ? 1 + C::kWaves : 1;
  const bool whole = row + 16 <= row_end || row_end == p.rows;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int index = wave * kParts + part;
    const int turn = index % kBuffers;
    uint8_t* buffer = turn == 0 ? own : held + (turn - 1) * C::kWaveRows * 128;
    if (!C::kHold || index >= kBuffers) {
      // The part that used this buffer before must have been read. With kHold no part of another tile is in
      // flight.
      if (lane == 0) bulk_store_wait_read<kBuffers - 1>();
      __syncwarp();
    }
    stage_part<C>(buffer, sums, scales, wave, part, lane);
    if (whole) {
      fence_proxy_async_shared();
      __syncwarp();
      if (lane == 0) {
        tma_store_2d(&y_map, buffer, n_begin + 64 * part, row);
        bulk_store_commit();
      }
      continue;
    }
    __syncwarp();
    const int column = n_begin + 64 * part + 8 * (lane % 8);
#pragma unroll 1
    for (int r = lane / 8; r < row_end - row; r += 4) {
      const uint4 values = *reinterpret_cast<const uint4*>(buffer + swizzle_128(r, lane % 8));
      if (column < p.n)
        *reinterpret_cast<uint4*>(p.y + static_cast<int64_t>(row + r) * p.y_stride + column) = values;
    }
  }
}

}  // namespace hadal::cuda::wgmma_gemm
