// Declares the work on weights on the device while they are loaded: conversion, quantisation, transposition
// and random generation. The kernels are plain and memory-bound, and give the same bits as the CPU's
// loader (model/quantize.h, model/random_weights.h). This header includes no CUDA header.
#pragma once

#include <cstdint>

#include "base/float_types.h"
#include "kernels/cuda/launch.h"
#include "kernels/params/linear.h"

namespace hadal::cuda {

enum class StoredType : uint8_t { kF32, kF16, kBF16, kE4M3, kI8 };

// Computes dst[r, c] = src[r, c] for c < cols, exactly to float32, or rounded to nearest even to bf16 and
// float16. Strides are in elements.
struct ConvertWeightParams {
  const void* src = nullptr;  // [rows, src_stride] of kF32, kF16 or kBF16
  StoredType src_type = StoredType::kBF16;
  int64_t src_stride = 0;
  void* dst = nullptr;  // [rows, dst_stride] of kF32, kBF16 or kF16
  StoredType dst_type = StoredType::kBF16;
  int64_t dst_stride = 0;
  int64_t rows = 0, cols = 0;
};
void convert_weight(const ConvertWeightParams& params, const Launch& launch);

// Describes the quantisation of [rows, cols] to one of the types with scales, as quantize_rows
// (model/quantize.h) does it: by blocks from the upper left corner, of which those at the right and lower
// edges may be smaller, or by rows. All values determine the scales. If only some of the codes are wanted,
// these are the first rows of blocks (of the last block, which another rank's rows share), or some columns of
// rows; other memory is left as it is.
struct QuantizeWeightParams {
  WeightType type = WeightType::kFp8Block;
  const void* src = nullptr;  // [rows, src_stride] of kF32, kF16 or kBF16
  StoredType src_type = StoredType::kBF16;
  int64_t src_stride = 0;
  fp8_e4m3* codes = nullptr;  // [code_rows, stride], of which code_cols are written; int8_t in the int8 types
  int64_t stride = 0;
  float* scales = nullptr;  // blocks: [ceil(rows / 128), scale_stride]; channels: [rows]
  int64_t scale_stride = 0;
  int64_t rows = 0, cols = 0;
  int64_t code_rows = 0;                      // blocks: of the rows whose codes are wanted; channels: rows
  int64_t first_code_col = 0, code_cols = 0;  // with block scales these are 0 and cols
};
void quantize_weight(const QuantizeWeightParams& params, const Launch& launch);

// Transposes W_UK per head: w_uk[512·h + c, d] = kv_b[256·h + d, c], d < 128, c < 512; for FP8 also
// w_uk_scales[4·h + b] = kv_b_scales[2·h, b], b < 4.
struct TransposeKeysParams {
  const void* kv_b = nullptr;  // [heads · 256, stride] of kBF16, kF16 or kE4M3
  StoredType type = StoredType::kBF16;
  int64_t stride = 0;
  void* w_uk = nullptr;                // [heads · 512, 128], dense
  const float* kv_b_scales = nullptr;  // [heads · 2, scale_stride]; null but for kE4M3
  int64_t scale_stride = 0;
  float* w_uk_scales = nullptr;  // [heads · 4]
  int num_heads = 0;
};
void transpose_keys(const TransposeKeysParams& params, const Launch& launch);

// Generates elements of a random tensor by the definition at the top of model/random_weights.h: dst[r, c] is
// element first + r · src_cols + c of the tensor, in its stored type.
enum class RandomKind : uint8_t { kReal, kFp8Codes, kPowerOfTwo, kInt8Codes };
struct RandomWeightParams {
  RandomKind kind = RandomKind::kReal;
  StoredType type = StoredType::kBF16;  // kE4M3 for kFp8Codes and only there, kI8 for kInt8Codes
  uint32_t key_low = 0, key_high = 0;
  float offset = 0.0F, scale = 0.0F;
  uint32_t upper_threshold = 0;
  int64_t first = 0;     // index of dst[0, 0]; all indices below 2^33
  int64_t src_cols = 0;  // elements between rows of the tensor
  void* dst = nullptr;   // [rows, dst_stride]
  int64_t dst_stride = 0;
  int64_t rows = 0, cols = 0;
};
void random_weight(const RandomWeightParams& params, const Launch& launch);

// Returns the calling thread's current device, which a helper thread has to choose too.
int current_device();

}  // namespace hadal::cuda
