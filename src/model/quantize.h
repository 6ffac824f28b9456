// Converts weights: widening to float32, rounding to bf16, quantising to e4m3 or int8 in 128×128 blocks, by
// rows or by matrices, and back. It uses SIMD with run-time dispatch; the bits are the same on every
// instruction set. The functions are pure and work on the caller's memory.
//
// A block, row or matrix is quantised in float32, with amax = max(|w|, kMinBlockAmax):
//   e4m3: scale = amax / 448, code = e4m3(w · (448 / amax)); NaN has a code of its own
//   int8: scale = amax / 127, code = round(w · (127 / amax)) to nearest even, in [−127, 127]; int8 has no
//         NaN, so a NaN value makes the scale NaN, and with it all values
// Then value = code · scale. An infinity makes all values of its block, row or matrix NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/float_types.h"
#include "kernels/params/linear.h"
#include "tensor/dtype.h"

namespace hadal {

// Widens `count` values of F32, F16 or BF16 at src, with any alignment. This is exact, F16 subnormals
// included.
void widen_to_f32(DType dtype, const std::byte* src, int64_t count, float* dst);

// Rounds such values to bf16, to nearest even; BF16 is copied.
void round_to_bf16(DType dtype, const std::byte* src, int64_t count, bf16* dst);

// A block is scaled by at least this amax, so that blocks of zeros have finite scales.
inline constexpr float kMinBlockAmax = 0x1p-100F;

// Quantises rows of a matrix [n, k] to codes and scales of one of the four types that have scales. For block
// types it accepts up to 128 rows, which are one strip of blocks (the last block may be narrower).
//   src     [num_rows, k] of F32, F16 or BF16, dense, of any alignment
//   codes   [num_rows, k] bytes, dense
//   scales  blocks: [ceil(k / 128)]; channels: [num_rows]
void quantize_rows(WeightType type, DType dtype, const std::byte* src, int64_t num_rows, int64_t k,
                   std::byte* codes, float* scales);

// One scale per matrix needs two passes: the first finds the amax of all its pieces (at least kMinBlockAmax;
// NaN where int8 needs it) and from it the scale; the second computes the codes of each piece.
float max_abs(WeightType type, DType dtype, const std::byte* src, int64_t count);
float scale_of(WeightType type, float amax);
void quantize_values(WeightType type, DType dtype, const std::byte* src, int64_t count, float amax,
                     std::byte* codes);

// Does the inverse of quantize_rows: out [num_rows, k] = code · scale.
void dequantize_rows(WeightType type, const std::byte* codes, int64_t num_rows, int64_t k,
                     const float* scales, float* out);

}  // namespace hadal
