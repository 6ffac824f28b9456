// Computes output elements of a matrix product exactly as kernels/params/linear.h defines them. This is the
// oracle's inner loop, shared by the reference versions of linear, batched_linear and attention. Any thread
// may call it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

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

// Returns `sum` after `count` fused multiply-adds: sum = fma(x[i], y[i], sum) for i = 0 … count − 1 in order.
float fma_chain(float sum, const float* x, const float* y, int64_t count);

// WeightColumn holds the elements of W that one column n of the output needs, widened once for all rows of x.
class WeightColumn {
 public:
  // With `transposed` W is stored as [k, n].
  WeightColumn(const MatrixWeight& w, bool transposed, int64_t n, int64_t num_k)
      : w_(w), transposed_(transposed), n_(n), codes_(static_cast<size_t>(num_k)) {
    for (int64_t k = 0; k < num_k; ++k) {
      codes_[static_cast<size_t>(k)] = transposed ? weight_code(w, k, n) : weight_code(w, n, k);
    }
  }

  // Returns Σ_k x[k] · W[n, k] over k = 0 … num_k − 1 in order.
  float chain(const float* x) const {
    const auto num_k = static_cast<int64_t>(codes_.size());
    if (!is_block_scaled(w_.type)) {
      const float sum = fma_chain(0.0F, x, codes_.data(), num_k);
      return is_channel_scaled(w_.type) ? sum * w_.scales[n_] : sum;
    }
    float sum = 0.0F;
    for (int64_t k = 0; k < num_k; k += kScaleBlock) {
      const float block = fma_chain(0.0F, x + k, codes_.data() + k, std::min(kScaleBlock, num_k - k));
      const int64_t scale_row = (transposed_ ? k : n_) / kScaleBlock;
      const int64_t scale_col = (transposed_ ? n_ : k) / kScaleBlock;
      sum = std::fma(block, w_.scales[scale_row * w_.scale_stride + scale_col], sum);
    }
    return sum;
  }

 private:
  const MatrixWeight& w_;
  const bool transposed_;
  const int64_t n_;
  std::vector<float> codes_;
};

}  // namespace hadal::cpu::reference
