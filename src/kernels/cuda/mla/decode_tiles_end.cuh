// The end of a piece in decode_tiles.cuh: row sums of both sides, log-sum-exps, and each side's columns of
// the output, in the cache's type to `out` or as float32 to the slot of a split.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/mla/decode_tiles_pieces.cuh"

namespace hadal::cuda::tiles {

// By both computing warpgroups, after the products of the piece's last page. `out` and `sum` are the thread's
// accumulators and its share of the row sums; `pieces` counts those before.
template <bool kIsLeft, typename Out>
__device__ __forceinline__ void end_piece(const DecodeArgs& args, const DecodePiece& piece, int first_row,
                                          float (&out)[128], float (&sum)[2], uint32_t pieces,
                                          Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int lane = thread % 32;
  const int own_row = thread / 32 * 16 + lane / 4;  // and the one 8 further on
  const bool first_of_row = lane % 4 == 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] += __shfl_xor_sync(0xffffffffU, sum[h], 1);
    sum[h] += __shfl_xor_sync(0xffffffffU, sum[h], 2);
    if (first_of_row) shared.sums[kIsLeft ? 0 : 1][own_row + 8 * h] = sum[h];
  }
  meet(&shared.sums_written, pieces);
  float inverse[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float total = shared.sums[0][own_row + 8 * h] + shared.sums[1][own_row + 8 * h];
    inverse[h] = total > 0.0F ? 1.0F / total : 0.0F;
    const float lse = total > 0.0F ? shared.maximum[own_row + 8 * h] + log2f(total) : -INFINITY;
    const int row = first_row + own_row + 8 * h;
    if (kIsLeft && first_of_row && row < args.rows) {
      if (piece.slot >= 0) {
        args.partial_lse[int64_t{piece.slot} * args.rows + row] = lse;
      } else if (args.lse != nullptr) {
        args.lse[int64_t{piece.seq} * args.rows + row] = lse * kLn2;
      }
    }
  }
  meet(&shared.sums_read, pieces);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first_row + own_row + 8 * h;
    if (row >= args.rows) continue;
    const int64_t at = (piece.slot >= 0 ? int64_t{piece.slot} : int64_t{piece.seq}) * args.rows + row;
    const int64_t offset = at * kKvLatentDim + (kIsLeft ? 0 : kKvLatentDim / 2) + lane % 4 * 2;
    if (piece.slot >= 0) {
#pragma unroll
      for (int j = 0; j < 32; ++j) {
        *reinterpret_cast<float2*>(args.partial_out + offset + 8 * j) = {out[4 * j + 2 * h] * inverse[h],
                                                                         out[4 * j + 2 * h + 1] * inverse[h]};
      }
    } else {
#pragma unroll
      for (int j = 0; j < 32; ++j) {
        *reinterpret_cast<uint32_t*>(static_cast<Out*>(args.out) + offset + 8 * j) =
            pack_two<std::is_same_v<Out, f16>>(out[4 * j + 2 * h] * inverse[h],
                                               out[4 * j + 2 * h + 1] * inverse[h]);
      }
    }
  }
}

}  // namespace hadal::cuda::tiles
