// Holds the inner loops of the plain kernels, which compute one output element of a matrix product, and the
// function that computes the scale of a quantised group.
#pragma once

#include "kernels/cuda/activation.h"
#include "kernels/cuda/common/types.cuh"
#include "kernels/params/linear.h"

namespace hadal::cuda {

__device__ __forceinline__ float plain_weight(const MatrixWeight& w, int64_t i) {
  switch (w.type) {
    case WeightType::kF32:
      return static_cast<const float*>(w.data)[i];
    case WeightType::kBF16:
      return to_f32(static_cast<const bf16*>(w.data)[i]);
    case WeightType::kF16:
      return to_f32(static_cast<const f16*>(w.data)[i]);
    case WeightType::kFp8Block:
    case WeightType::kFp8Channel:
      return to_f32(static_cast<const fp8_e4m3*>(w.data)[i]);
    case WeightType::kInt8Block:
    case WeightType::kInt8Channel:
      return static_cast<const int8_t*>(w.data)[i];
  }
  return 0.0F;
}

// Returns Σ_k x[first + k] · W[n, k] with activations of 16 bits. With FP8 weights each block's sum is
// multiplied by its scale.
__device__ inline float plain_dot(const void* x, int64_t first, bool is_f16, const MatrixWeight& w, int64_t n,
                                  int64_t num_k) {
  float acc = 0.0F;
  for (int64_t k0 = 0; k0 < num_k; k0 += kQuantGroup) {
    const bool fp8 = w.type == WeightType::kFp8Block;
    float block = fp8 ? 0.0F : acc;
    for (int64_t k = k0; k < num_k && k < k0 + kQuantGroup; ++k) {
      block = fmaf(load_16_bit(x, first + k, is_f16), plain_weight(w, n * w.row_stride + k), block);
    }
    acc = fp8 ? fmaf(block, w.scales[n / kQuantGroup * w.scale_stride + k0 / kQuantGroup], acc) : block;
  }
  return acc;
}

// Returns the product of row `row` of quantised activations and row n of FP8 weights.
__device__ inline float plain_dot_fp8(const QuantizedRows& x, int64_t row, const MatrixWeight& w, int64_t n) {
  float acc = 0.0F;
  for (int64_t k0 = 0; k0 < w.k; k0 += kQuantGroup) {
    float block = 0.0F;
    for (int64_t k = k0; k < w.k && k < k0 + kQuantGroup; ++k) {
      block = fmaf(to_f32(x.codes[row * x.stride + k]), plain_weight(w, n * w.row_stride + k), block);
    }
    const float scale = w.scales[n / kQuantGroup * w.scale_stride + k0 / kQuantGroup] *
                        x.scales[k0 / kQuantGroup * x.scale_stride + row];
    acc = fmaf(block, scale, acc);
  }
  return acc;
}

// Returns the product of row `row` of quantised activations and row n of 8-bit weights of any format; sums of
// int8 are exact.
__device__ inline float plain_dot_w8a8(const QuantizedRows& x, int64_t row, const MatrixWeight& w,
                                       int64_t n) {
  if (w.type == WeightType::kFp8Block) return plain_dot_fp8(x, row, w, n);
  const fp8_e4m3* codes = x.codes + row * x.stride;
  const bool channel = is_channel_scaled(w.type);
  float acc = 0.0F;
  int32_t whole = 0;
  for (int64_t k0 = 0; k0 < w.k; k0 += kQuantGroup) {
    float block = 0.0F;
    int32_t count = 0;
    for (int64_t k = k0; k < w.k && k < k0 + kQuantGroup; ++k) {
      if (is_int8(x.format)) {
        count += int32_t{static_cast<int8_t>(codes[k].bits)} *
                 static_cast<const int8_t*>(w.data)[n * w.row_stride + k];
      } else {
        block = fmaf(to_f32(codes[k]), plain_weight(w, n * w.row_stride + k), block);
      }
    }
    whole += count;
    if (channel) {
      acc += block;
    } else {
      const float scale = w.scales[n / kQuantGroup * w.scale_stride + k0 / kQuantGroup] *
                          x.scales[k0 / kQuantGroup * x.scale_stride + row];
      acc = fmaf(static_cast<float>(count), scale, acc);
    }
  }
  if (!channel) return acc;
  return (is_int8(x.format) ? static_cast<float>(whole) : acc) * x.scales[row] * w.scales[n];
}

// Returns the scale of a group (kernels/cuda/activation.h): amax / 448, or the power of two at or above it.
__device__ __forceinline__ float quant_scale(float amax, bool power_of_two) {
  const float scale = amax > 0.0F ? amax / 448.0F : 1.0F;
  if (!power_of_two) return scale;
  const uint32_t bits = __float_as_uint(scale);
  return __uint_as_float(((bits + 0x007FFFFFU) >> 23) << 23);
}

}  // namespace hadal::cuda
