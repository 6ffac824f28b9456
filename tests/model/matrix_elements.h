// Reads matrices of loaded weights element by element.
#pragma once

#include <gtest/gtest.h>

#include "kernels/params/linear.h"

namespace hadal::testing {

// Returns element [row, col] of a matrix in float32.
inline float element(const MatrixWeight& w, int64_t row, int64_t col) {
  const int64_t i = row * w.row_stride + col;
  switch (w.type) {
    case WeightType::kF32:
      return static_cast<const float*>(w.data)[i];
    case WeightType::kBF16:
      return to_float(static_cast<const bf16*>(w.data)[i]);
    case WeightType::kF16:
      return to_float(static_cast<const f16*>(w.data)[i]);
    case WeightType::kFp8Block:
      return to_float(static_cast<const fp8_e4m3*>(w.data)[i]) *
             w.scales[row / 128 * w.scale_stride + col / 128];
    case WeightType::kInt8Block:
      return static_cast<float>(static_cast<const int8_t*>(w.data)[i]) *
             w.scales[row / 128 * w.scale_stride + col / 128];
    case WeightType::kFp8Channel:
      return to_float(static_cast<const fp8_e4m3*>(w.data)[i]) * w.scales[row];
    case WeightType::kInt8Channel:
      return static_cast<float>(static_cast<const int8_t*>(w.data)[i]) * w.scales[row];
  }
  return 0.0F;
}

// Expects every element of `w` to be f(row · k + col).
template <typename F>
void expect_matrix(const MatrixWeight& w, int64_t n, int64_t k, WeightType type, const F& f) {
  ASSERT_EQ(w.n, n);
  ASSERT_EQ(w.k, k);
  ASSERT_EQ(w.type, type);
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t col = 0; col < k; ++col)
      ASSERT_EQ(element(w, row, col), f(row * k + col)) << row << "," << col;
  }
}

}  // namespace hadal::testing
