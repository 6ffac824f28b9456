// Declares the operations on weights that the device runs while a model is loaded: conversion, quantisation,
// transposition and random generation. The kernels are plain and memory-bound, and give the same bits as the
// CPU's loader (model/quantize.h, model/random_weights.h). This header includes no CUDA header.
#pragma once

#include <cstdint>

#include "base/float_types.h"
#include "kernels/cuda/launch.h"
#include "kernels/params/linear.h"

namespace hadal::cuda {

enum class StoredType : uint8_t { kF32, kF16, kBF16, kE4M3, kI8 };

// Computes dst[r, c] = src[r, c] for c < cols: exact in float32, rounded to nearest even in bf16 and float16.
// Strides are in elements.
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

// Describes the quantisation of [rows, cols] to one of the types with scales, as in quantize_rows
// (model/quantize.h). There is one scale per row or per 128×128 block, where blocks count from the upper left
// corner and may be smaller at the right and lower edges. All values determine the scales, but a caller may
// store only some of the codes: with block scales the first code_rows rows, because another rank may have the
// last block's other rows, and with row scales code_cols columns from first_code_col on. Other memory is left
// as it is.
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
  int64_t code_rows = 0;                      // blocks: rows whose codes are stored; channels: rows
  int64_t first_code_col = 0, code_cols = 0;  // with block scales these are 0 and cols
};
void quantize_weight(const QuantizeWeightParams& params, const Launch& launch);

// Transposes W_UK per head: w_uk[512·h + c, d] = kv_b[256·h + d, c] for d < 128 and c < 512. For FP8 it also
// sets w_uk_scales[4·h + b] = kv_b_scales[2·h, b] for b < 4.
struct TransposeKeysParams {
  const void* kv_b = nullptr;  // [heads · 256, stride] of kBF16, kF16 or kE4M3
  StoredType type = StoredType::kBF16;
  int64_t stride = 0;
  void* w_uk = nullptr;                // [heads · 512, 128], dense
  const float* kv_b_scales = nullptr;  // [heads · 2, scale_stride] with kE4M3, otherwise null
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
  StoredType type = StoredType::kBF16;  // kE4M3 exactly with kFp8Codes, kI8 exactly with kInt8Codes
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

// Returns the calling thread's current device, which a helper thread must also set.
int current_device();

}  // namespace hadal::cuda
