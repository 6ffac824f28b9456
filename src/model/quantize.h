// Conversions of weights at load: widening to float32, rounding to bf16, quantising to fp8 blocks. SIMD with
// run-time dispatch; the same bits on every instruction set. Pure functions on caller's memory; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/float_types.h"
#include "tensor/dtype.h"

namespace hadal {

// src: `count` values of F32, F16 or BF16, of any alignment. Exact (F16 subnormals included).
void widen_to_f32(DType dtype, const std::byte* src, int64_t count, float* dst);

// The same rounded to nearest even; BF16 is copied.
void round_to_bf16(DType dtype, const std::byte* src, int64_t count, bf16* dst);

// The smallest amax that a block is scaled by, so that blocks of zeros have finite scales.
inline constexpr float kMinBlockAmax = 0x1p-100F;

// One strip of up to 128 rows of a matrix [n, k] into e4m3 codes and one row of scales. Per block of 128
// columns (the last may be narrower): amax = max(|w|, kMinBlockAmax), scale = amax / 448,
// code = e4m3(w · (448 / amax)), all in float32; value = code · scale.
//   src     [num_rows, k] of F32, F16 or BF16, dense, of any alignment
//   codes   [num_rows, k], dense
//   scales  [ceil(k / 128)]
void quantize_fp8_strip(DType dtype, const std::byte* src, int64_t num_rows, int64_t k, fp8_e4m3* codes,
                        float* scales);

}  // namespace hadal
