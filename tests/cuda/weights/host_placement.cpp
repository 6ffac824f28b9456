// Executes a plan on host memory with the CPU's conversions.
#include <algorithm>
#include <cstring>

#include "model/quantize.h"
#include "tests/cuda/weights/placed_weights.h"

namespace hadal::testing {

void widen_on_host(WeightType type, const std::byte* codes, int64_t n, int64_t k, std::vector<float> scales,
                   bf16* out, int64_t stride) {
  if (scales.size() == 1) scales.assign(static_cast<size_t>(n), scales[0]);
  std::vector<float> values(static_cast<size_t>(kFp8BlockSize * k));
  for (int64_t row = 0; row < n; row += kFp8BlockSize) {
    const int64_t num_rows = std::min<int64_t>(kFp8BlockSize, n - row);
    const int64_t first = is_block_scaled(type) ? row / kFp8BlockSize * ((k + 127) / 128) : row;
    dequantize_rows(type, codes + row * k, num_rows, k, scales.data() + first, values.data());
    for (int64_t i = 0; i < num_rows; ++i)
      round_to_bf16(DType::kF32, reinterpret_cast<const std::byte*>(values.data() + i * k), k,
                    out + (row + i) * stride);
  }
}

namespace {

// Returns the window's stored values, dense.
std::vector<std::byte> window_values(const WeightPlacement& placement) {
  const TensorSource& from = *placement.source;
  const auto element_bytes = static_cast<size_t>(dtype_bytes(from.dtype));
  std::vector<std::byte> values(static_cast<size_t>(placement.rows * placement.cols) * element_bytes);
  for (int64_t i = 0; i < placement.rows; ++i) {
    std::byte* out = values.data() + static_cast<size_t>(i * placement.cols) * element_bytes;
    const int64_t first = (placement.row + i) * from.cols + placement.col;
    if (from.random) {
      from.random->fill(first, placement.cols, out);
    } else {
      std::memcpy(out, from.bytes.data() + static_cast<size_t>(first) * element_bytes,
                  static_cast<size_t>(placement.cols) * element_bytes);
    }
  }
  return values;
}

// Quantises all values that determine the window's scales, and keeps the codes and scales of the window.
void quantise_on_host(const WeightPlacement& to) {
  WeightPlacement all = to;
  all.rows = to.end_row() - to.row;
  all.col = to.scale_col;
  all.cols = to.scale_cols;
  const std::vector<std::byte> values = window_values(all);
  const int64_t element_bytes = dtype_bytes(to.source->dtype);
  std::vector<std::byte> codes(static_cast<size_t>(kFp8BlockSize * all.cols));
  for (int64_t row = 0; row < to.rows; row += kFp8BlockSize) {
    const int64_t num_rows = std::min<int64_t>(kFp8BlockSize, all.rows - row);
    quantize_rows(to.codes, to.source->dtype, values.data() + row * all.cols * element_bytes, num_rows,
                  all.cols, codes.data(),
                  to.scales + (is_block_scaled(to.codes) ? row / kFp8BlockSize * to.scale_stride : row));
    for (int64_t i = 0; i < std::min(num_rows, to.rows - row); ++i) {
      std::memcpy(to.dst + (row + i) * to.stride, codes.data() + i * all.cols + (to.col - to.scale_col),
                  static_cast<size_t>(to.cols));
    }
  }
}

std::vector<float> floats_of(const WeightPlacement& window) {
  const std::vector<std::byte> stored = window_values(window);
  std::vector<float> values(static_cast<size_t>(window.rows * window.cols));
  widen_to_f32(window.source->dtype, stored.data(), window.rows * window.cols, values.data());
  return values;
}
std::vector<float> all_floats(const TensorSource& from) {
  return floats_of({.source = &from, .rows = from.rows, .cols = from.cols});
}

// Returns the scales of a widened window: per block, per row, or one.
std::vector<float> scales_of_window(const WeightPlacement& to) {
  if (to.code_scales->num_elements() == 1) return all_floats(*to.code_scales);
  if (!is_block_scaled(to.codes))
    return floats_of({.source = to.code_scales, .row = to.row, .rows = to.rows, .cols = 1});
  const auto blocks = [](int64_t size) { return (size + 127) / 128; };
  return floats_of({.source = to.code_scales,
                    .row = to.row / 128,
                    .col = to.col / 128,
                    .rows = blocks(to.rows),
                    .cols = blocks(to.cols)});
}

void place_on_host(const WeightPlacement& to) {
  if (to.repeat) {
    const float value = all_floats(*to.source)[0];
    for (int64_t i = 0; i < to.rows; ++i) reinterpret_cast<float*>(to.dst)[i * to.stride] = value;
    return;
  }
  if (to.quantised()) return quantise_on_host(to);
  const std::vector<std::byte> values = window_values(to);
  if (to.widened()) {
    return widen_on_host(to.codes, values.data(), to.rows, to.cols, scales_of_window(to),
                         reinterpret_cast<bf16*>(to.dst), to.stride);
  }
  const int64_t from_bytes = dtype_bytes(to.source->dtype);
  const int64_t to_bytes = dtype_bytes(to.type);
  for (int64_t i = 0; i < to.rows; ++i) {
    const std::byte* src = values.data() + i * to.cols * from_bytes;
    std::byte* dst = to.dst + i * to.stride * to_bytes;
    if (to.direct()) {
      std::memcpy(dst, src, static_cast<size_t>(to.cols * to_bytes));
    } else if (to.type == DType::kF32) {
      widen_to_f32(to.source->dtype, src, to.cols, reinterpret_cast<float*>(dst));
    } else if (to.type == DType::kF16) {
      std::vector<float> wide(static_cast<size_t>(to.cols));
      widen_to_f32(to.source->dtype, src, to.cols, wide.data());
      std::transform(wide.begin(), wide.end(), reinterpret_cast<f16*>(dst),
                     [](float v) { return to_f16(v); });
    } else {
      round_to_bf16(to.source->dtype, src, to.cols, reinterpret_cast<bf16*>(dst));
    }
  }
}

}  // namespace

const std::byte* element_at(const MatrixWeight& w, int64_t row, int64_t col) {
  return static_cast<const std::byte*>(w.data) + (row * w.row_stride + col) * weight_element_bytes(w.type);
}

void run_on_host(const DeviceWeightPlan& plan) {
  for (const WeightPlacement& placement : plan.placements) place_on_host(placement);
  for (const KeyTranspose& job : plan.transposes) {
    const auto size = static_cast<size_t>(weight_element_bytes(job.w_uk.type));
    for (int64_t row = 0; row < job.w_uk.n; ++row) {
      for (int64_t d = 0; d < 128; ++d) {
        std::memcpy(const_cast<std::byte*>(element_at(job.w_uk, row, d)),
                    element_at(job.kv_b, row / 512 * 256 + d, row % 512), size);
      }
    }
    if (job.w_uk.type != WeightType::kFp8Block) continue;
    for (int64_t i = 0; i < job.num_heads * 4; ++i) {
      const_cast<float*>(job.w_uk.scales)[i] = job.kv_b.scales[i / 4 * 2 * job.kv_b.scale_stride + i % 4];
    }
  }
}

}  // namespace hadal::testing
