// Computes one output element of a matrix product exactly as kernels/params/linear.h defines it. This is the
// oracle's inner loop, shared by the reference versions of linear, batched_linear and attention. Thread-safe,
// allocates nothing.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "base/float_types.h"
#include "base/fp8_table.h"
#include "kernels/params/linear.h"

namespace hadal::cpu::reference {

inline constexpr int64_t kScaleBlock = 128;  // one block scale covers 128 × 128 weights

// Loads element i of a tensor in a mapped file, which may begin at any byte.
template <typename T>
T load_unaligned(const void* data, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(data) + i * sizeof(T), sizeof(T));
  return value;
}

// Returns the stored element (row, col) of `w` as float32, before any scale.
inline float weight_code(const MatrixWeight& w, int64_t row, int64_t col) {
  const int64_t i = row * w.row_stride + col;
  switch (w.type) {
    case WeightType::kF32:
      return load_unaligned<float>(w.data, i);
    case WeightType::kBF16:
      return to_float(load_unaligned<bf16>(w.data, i));
    case WeightType::kF16:
      return to_float(load_unaligned<f16>(w.data, i));
    case WeightType::kFp8Block:
    case WeightType::kFp8Channel:
      return e4m3_values()[load_unaligned<fp8_e4m3>(w.data, i).bits];
    case WeightType::kInt8Block:
    case WeightType::kInt8Channel:
      return static_cast<float>(load_unaligned<int8_t>(w.data, i));
  }
  return 0.0F;
}

inline void check_scales(const MatrixWeight& w) {
  HADAL_CHECK(w.scales != nullptr || !has_scales(w.type), "8-bit weights need scales");
}

// Returns Σ_k x[k] · W[n, k] over k = 0 … num_k − 1 in order. `transposed`: W is stored as [k, n].
inline float weight_chain(const MatrixWeight& w, bool transposed, int64_t n, const float* x, int64_t num_k) {
  const auto code = [&](int64_t k) { return transposed ? weight_code(w, k, n) : weight_code(w, n, k); };
  float acc = 0.0F;
  if (!is_block_scaled(w.type)) {
    for (int64_t k = 0; k < num_k; ++k) acc = std::fma(x[k], code(k), acc);
    return is_channel_scaled(w.type) ? acc * w.scales[n] : acc;
  }
  for (int64_t k0 = 0; k0 < num_k; k0 += kScaleBlock) {
    float block = 0.0F;
    for (int64_t k = k0; k < num_k && k < k0 + kScaleBlock; ++k) block = std::fma(x[k], code(k), block);
    const int64_t scale_row = (transposed ? k0 : n) / kScaleBlock;
    const int64_t scale_col = (transposed ? n : k0) / kScaleBlock;
    acc = std::fma(block, w.scales[scale_row * w.scale_stride + scale_col], acc);
  }
  return acc;
}

}  // namespace hadal::cpu::reference
