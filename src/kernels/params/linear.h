// Holds the parameters of matrix products y = x · Wᵀ and their batched and grouped forms.
//
// These numerics make a result independent of the batch. Activations are float32, and weights are converted
// exactly to float32. Every output element is one chain of fused multiply-adds over k = 0, 1, …, K−1 in this
// order, starting from +0, whatever M, N, the instruction set or the number of threads. For block weights the
// chain runs over each 128-wide block of k from +0, and the block sums are joined in block order: acc =
// fma(block_sum, scale[n/128][k/128], acc), starting from +0. For channel weights the chain runs over the
// codes and its result is multiplied once: y = chain · scale[n]. SIMD lanes therefore run over outputs, never
// over k.
#pragma once

#include <cstdint>

#include "base/float_types.h"

namespace hadal {

// WeightType is the type of the elements and how they are scaled: value = code · scale. Block types have one
// scale per 128 × 128 codes, channel types one per row (output).
enum class WeightType : uint8_t { kF32, kBF16, kF16, kFp8Block, kInt8Block, kFp8Channel, kInt8Channel };

// These are the 16-bit types. On a GPU their activations have the same type.
constexpr bool is_16_bit(WeightType type) {
  return type == WeightType::kBF16 || type == WeightType::kF16;
}

constexpr int64_t weight_element_bytes(WeightType type) {
  return type == WeightType::kF32 ? 4 : is_16_bit(type) ? 2 : 1;
}
constexpr bool is_block_scaled(WeightType type) {
  return type == WeightType::kFp8Block || type == WeightType::kInt8Block;
}
constexpr bool is_channel_scaled(WeightType type) {
  return type == WeightType::kFp8Channel || type == WeightType::kInt8Channel;
}
constexpr bool is_int8(WeightType type) {
  return type == WeightType::kInt8Block || type == WeightType::kInt8Channel;
}
// These are the 8-bit types. On a GPU their activations have 8 bits too (W8A8).
constexpr bool has_scales(WeightType type) {
  return is_block_scaled(type) || is_channel_scaled(type);
}

// MatrixWeight is a weight matrix as the checkpoint stores it: [n, k], k contiguous.
struct MatrixWeight {
  const void* data =
      nullptr;  // [n, k] of float, bf16, f16, fp8_e4m3 or int8_t; rows row_stride elements apart
  WeightType type = WeightType::kBF16;
  int64_t n = 0;           // output features
  int64_t k = 0;           // input features
  int64_t row_stride = 0;  // elements, ≥ k
  // For block types [ceil(n/128), ceil(k/128)], where `data` starts at a block border; for channel types [n];
  // else null.
  const float* scales = nullptr;
  int64_t scale_stride = 0;  // block only: elements between rows of scales
};

// Computes y[m, :] = x[m, :] · Wᵀ.
struct LinearParams {
  const float* x = nullptr;  // [m, w.k], rows x_stride apart
  float* y = nullptr;        // [m, w.n], rows y_stride apart; must not overlap x
  int64_t m = 0;
  int64_t x_stride = 0;
  int64_t y_stride = 0;
  MatrixWeight w;
};

// Computes one product per head, all heads in one call, with the absorbed matrices of MLA:
//   transposed == false: y[m, h, :] = x[m, h, :] · W[h]ᵀ, W[h] = [n, k]   (W_UV: n 128, k 512)
//   transposed == true:  y[m, h, :] = x[m, h, :] · W[h],  W[h] = [k, n]   (W_UK: k 128, n 512); same chain
//   over k. Channel weights are not supported, because their scales would lie along k: the loader converts
//   them to bfloat16 or float32. Head h's matrix starts `head_stride` elements after head h−1's (and
//   `scale_head_stride` scales after its scales).
struct BatchedLinearParams {
  const float* x =
      nullptr;         // [m, num_heads, k]: x_stride between m, x_head_stride between heads, k contiguous
  float* y = nullptr;  // [m, num_heads, n]: likewise
  int64_t m = 0;
  int64_t num_heads = 0;
  int64_t x_stride = 0, x_head_stride = 0;
  int64_t y_stride = 0, y_head_stride = 0;
  MatrixWeight w;  // head 0's matrix; n outputs and k inputs as above (if transposed, stored as [k, n])
  int64_t head_stride = 0;
  int64_t scale_head_stride = 0;
  bool transposed = false;
};

}  // namespace hadal
