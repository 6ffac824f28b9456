// Defines the layout of partial results of split sequences, for the kernels that write them and the kernel
// that joins them (merge.cu). merge.cu runs if DecodeGeometry::merge_inside is false: with fixed splits
// and with tiles of 64 rows. The swapped kernel joins its other splits itself (mla/decode/swapped/merge.cuh).
#pragma once

#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/mla/decode/shared/pieces.cuh"

namespace hadal::cuda {

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffU, v, d));
  return v;
}
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffU, v, d);
  return v;
}

// Partial results of 64-row tiles of 16-bit products are float16 if the output is bf16
// (DecodeGeometry::half_partials), because float16 has half the bytes of float32 and is still eight times as
// precise as the output. They lie in the first half of partial_out: [max_slots, rows, 512]. Each half of a
// row is multiplied by a power of two that brings its largest value below 2^15, so that latents of any size
// fit. The inverses of these powers lie in the second half of partial_out: [max_slots, rows, 2].
struct HalfPartials {
  f16* values;
  float* scales;
};
__device__ __forceinline__ HalfPartials half_partials(const DecodeArgs& args) {
  return {reinterpret_cast<f16*>(args.partial_out),
          args.partial_out + (args.partial_lse - args.partial_out) / 2};
}
// Returns the power of two by which values up to `largest` are multiplied, and its inverse.
__device__ __forceinline__ float2 half_scale(float largest) {
  const uint32_t exponent = max(__float_as_uint(largest) >> 23, 15U);
  return {__uint_as_float((268U - exponent) << 23), __uint_as_float((exponent - 14U) << 23)};
}

}  // namespace hadal::cuda
