// Ends a piece in mla/decode/tiles/kernel.cuh: it joins the row sums of both sides and stores log-sum-exps
// and each side's columns of the output. The output goes to `out` in its own type, or to the slot of a split:
// as scaled float16 (HalfPartials) if the output is bf16, as float32 if it is float16. A quad of lanes has a
// row's columns as words of two values. The lanes exchange words so that each lane stores 16 bytes and a quad
// stores 64 contiguous bytes, because a warp's store touches eight rows and takes as long with 16 bytes per
// row as with 64.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/mla/decode/shared/partials.cuh"
#include "kernels/cuda/mla/decode/tiles/pieces.cuh"

namespace hadal::cuda::tiles {

// Transposes a quad: word i of lane c becomes word c of lane i.
__device__ __forceinline__ uint4 transpose_quad(const uint32_t (&w)[4]) {
  const bool odd = (threadIdx.x & 1U) != 0;
  const bool high = (threadIdx.x & 2U) != 0;
  const auto exchange = [](uint32_t value, int with) { return __shfl_xor_sync(0xffffffffU, value, with); };
  const uint32_t near01 = exchange(odd ? w[0] : w[1], 1);
  const uint32_t near23 = exchange(odd ? w[2] : w[3], 1);
  // In even lanes `low` and `up` hold words 0 and 2 of lanes 2n and 2n + 1, in odd lanes words 1 and 3.
  const uint32_t low[2] = {odd ? near01 : w[0], odd ? w[1] : near01};
  const uint32_t up[2] = {odd ? near23 : w[2], odd ? w[3] : near23};
  const uint32_t far0 = exchange(high ? low[0] : up[0], 2);
  const uint32_t far1 = exchange(high ? low[1] : up[1], 2);
  return high ? make_uint4(far0, far1, up[0], up[1]) : make_uint4(low[0], low[1], far0, far1);
}

// Ends a piece; called by both computing warpgroups after the products of the piece's last page. `out` has
// the thread's accumulators. `pieces` is the number of pieces with pages so far. It selects the buffer of row
// sums; pieces without pages do not count, because they have no hand-over that keeps the sides in step.
template <bool kIsLeft, typename Out>
__device__ __forceinline__ void end_piece(const DecodeArgs& args, const DecodePiece& piece, int first_row,
                                          const float (&out)[128], uint32_t pieces, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int lane = thread % 32;
  const int own_row = thread / 32 * 16 + lane / 4;  // the thread's other row is 8 further on
  const bool first_of_row = lane % 4 == 0;
  // Each side has received the other's row sums with the hand-overs of the last pair.
  const auto& sums = shared.sums[pieces & 1U];
  const int pages = piece.end_page - piece.begin_page;
  __syncwarp();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int tile_row = own_row + 8 * h;
    const float later = pages % 2 == 0 ? shared.rescale[1][tile_row] : 1.0F;
    const float total = pages > 0 ? sums[0][tile_row] * later + sums[1][tile_row] : 0.0F;
    const float inverse = total > 0.0F ? 1.0F / total : 0.0F;
    const float lse = total > 0.0F ? shared.maximum[own_row + 8 * h] + log2f(total) : -INFINITY;
    const int row = first_row + own_row + 8 * h;
    if (kIsLeft && first_of_row && row < args.rows) {
      if (piece.slot >= 0) {
        args.partial_lse[int64_t{piece.slot} * args.rows + row] = lse;
      } else if (args.lse != nullptr) {
        args.lse[int64_t{piece.seq} * args.rows + row] = lse * kLn2;
      }
    }
    const bool is_split = piece.slot >= 0;
    const int64_t at = (is_split ? int64_t{piece.slot} : int64_t{piece.seq}) * args.rows + row;
    if constexpr (std::is_same_v<Out, f16>) {
      if (is_split) {
        float* to = args.partial_out + at * kKvLatentDim + (kIsLeft ? 0 : kKvLatentDim / 2) + lane % 4 * 2;
        if (row < args.rows) {
#pragma unroll
          for (int j = 0; j < 32; ++j) {
            const int from = 4 * j + 2 * h;
            *reinterpret_cast<float2*>(to + 8 * j) = {out[from] * inverse, out[from + 1] * inverse};
          }
        }
        continue;
      }
    }
    const HalfPartials partials = half_partials(args);
    float factor = inverse;
    if (is_split) {
      float largest = 0.0F;
#pragma unroll
      for (int j = 0; j < 32; ++j)
        largest = fmaxf(largest, fmaxf(fabsf(out[4 * j + 2 * h]), fabsf(out[4 * j + 2 * h + 1])));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, 2));
      const float2 scale = half_scale(largest * inverse);
      factor *= scale.x;
      if (first_of_row && row < args.rows) partials.scales[2 * at + (kIsLeft ? 0 : 1)] = scale.y;
    }
    void* base = is_split ? static_cast<void*>(partials.values) : args.out;
    auto* to =
        static_cast<uint16_t*>(base) + at * kKvLatentDim + (kIsLeft ? 0 : kKvLatentDim / 2) + lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < 32; j += 4) {
      uint32_t words[4];
      const auto pack = [&](auto type) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = 4 * (j + i) + 2 * h;
          words[i] = pack_two<decltype(type)>(out[at] * factor, out[at + 1] * factor);
        }
      };
      if (std::is_same_v<Out, f16> || is_split) {
        pack(f16{});
      } else {
        pack(bf16{});
      }
      const uint4 columns = transpose_quad(words);
      if (row < args.rows) *reinterpret_cast<uint4*>(to + 8 * j) = columns;
    }
  }
}

}  // namespace hadal::cuda::tiles
