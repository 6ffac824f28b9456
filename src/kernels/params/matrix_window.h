// Returns parts of a weight matrix as views of its memory, and the bytes of a matrix. Ranks that share a
// model hold their parts of it as such views.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "kernels/params/linear.h"

namespace hadal {

inline constexpr int64_t kScaleBlockSize = 128;  // rows and columns that share a scale of a block type

// Returns the bytes of a [n, k] matrix of this type with its scales, without padding between its rows. An
// empty matrix has 0 bytes.
constexpr int64_t matrix_bytes(WeightType type, int64_t n, int64_t k) {
  if (n == 0 || k == 0) return 0;
  const auto blocks = [](int64_t size) { return (size + kScaleBlockSize - 1) / kScaleBlockSize; };
  const int64_t num_scales = is_block_scaled(type) ? blocks(n) * blocks(k) : is_channel_scaled(type) ? n : 0;
  return n * k * weight_element_bytes(type) + num_scales * static_cast<int64_t>(sizeof(float));
}
constexpr int64_t matrix_bytes(const MatrixWeight& w) {
  return matrix_bytes(w.type, w.n, w.k);
}

// Returns rows [first, first + count). With a block type, `first` is a multiple of 128 unless there are none.
inline MatrixWeight row_window(MatrixWeight w, int64_t first, int64_t count) {
  HADAL_CHECK(first >= 0 && count >= 0 && first + count <= w.n, "rows {}+{} of {}", first, count, w.n);
  HADAL_CHECK(w.scales != nullptr || !has_scales(w.type), "8-bit weights need scales");
  if (count == 0) first = 0;  // an empty view may be anywhere
  w.data = static_cast<const std::byte*>(w.data) + first * w.row_stride * weight_element_bytes(w.type);
  w.n = count;
  if (is_channel_scaled(w.type)) w.scales += first;
  if (is_block_scaled(w.type)) {
    HADAL_CHECK_EQ(first % kScaleBlockSize, 0);
    w.scales += first / kScaleBlockSize * w.scale_stride;
  }
  return w;
}

// Returns columns [first, first + count). With a block type, `first` is a multiple of 128 unless there are
// none.
inline MatrixWeight column_window(MatrixWeight w, int64_t first, int64_t count) {
  HADAL_CHECK(first >= 0 && count >= 0 && first + count <= w.k, "columns {}+{} of {}", first, count, w.k);
  HADAL_CHECK(w.scales != nullptr || !has_scales(w.type), "8-bit weights need scales");
  if (count == 0) first = 0;  // an empty view may be anywhere
  w.data = static_cast<const std::byte*>(w.data) + first * weight_element_bytes(w.type);
  w.k = count;
  if (is_block_scaled(w.type)) {
    HADAL_CHECK_EQ(first % kScaleBlockSize, 0);
    w.scales += first / kScaleBlockSize;
  }
  return w;
}

}  // namespace hadal
