// Makes operands of the products of cuda_gemm_table_bench, with values like those of trained models.
#pragma once

#include <algorithm>
#include <cstdint>

#include "bench/cuda/graph_timer.h"
#include "bench/cuda/random_operands.h"
#include "bench/cuda/table_rows.h"
#include "kernels/cuda/gemm/gemm.h"

namespace hadal::bench {

inline constexpr size_t kMostActivationBytes = size_t{512} << 20;

// Counts the scales of one matrix: one per block, or one per row of W.
inline int64_t num_scales(WeightType type, int64_t n, int64_t k) {
  return is_channel_scaled(type) ? n : cuda::round_up((n + 127) / 128 * ((k + 127) / 128), 4);
}

// Holds operands of a product, dense or grouped, in enough sets that no data of a set is left in the L2 when
// the set is used again.
struct Operands {
  ProductShape s;
  WeightType type;
  int64_t rows;  // rows of x and y
  int sets, x_sets;
  size_t w_bytes, x_bytes;
  DeviceBuffer w, w_scales, x, x_scales, y;

  Operands(const ProductShape& shape, WeightType weight_type, CudaStream& stream)
      : s(shape), type(weight_type) {
    const size_t element = weight_element_bytes(type);
    rows = s.m * s.groups;
    w_bytes = element * s.groups * s.n * s.k;
    x_bytes = element * rows * s.k;
    sets = num_rotating_sets(w_bytes);
    x_sets = static_cast<int>(std::clamp<size_t>(kMostActivationBytes / x_bytes, 1, sets));
    if (has_scales(type)) {
      const auto codes = is_int8(type) ? random_int8 : random_e4m3;
      w = codes(w_bytes * sets, stream);
      x = codes(x_bytes * x_sets, stream);
      w_scales = random_scales(num_scales(type, s.n, s.k) * s.groups * sets, stream);
      x_scales = random_scales(scale_stride() * scale_runs() * x_sets, stream);
    } else {
      w = random_bf16(w_bytes / 2 * sets, stream);
      x = random_bf16(x_bytes / 2 * x_sets, stream);
    }
    y = DeviceBuffer(rows * s.n * 2);
  }

  int64_t scale_stride() const { return cuda::round_up(rows, 4); }
  int64_t scale_runs() const { return is_channel_scaled(type) ? 1 : s.k / 128; }
  MatrixWeight weight(int call) const {
    const size_t set = call % sets;
    return {.data = w.data() + set * w_bytes,
            .type = type,
            .n = s.n,
            .k = s.k,
            .row_stride = s.k,
            .scales = has_scales(type) ? w_scales.as<float>() + set * num_scales(type, s.n, s.k) * s.groups
                                       : nullptr,
            .scale_stride = is_block_scaled(type) ? s.k / 128 : 0};
  }
  const bf16* x_bf16(int call) const {
    return has_scales(type) ? nullptr : x.as<bf16>() + call % x_sets * (x_bytes / 2);
  }
  cuda::QuantizedRows x_quantized(int call) const {
    if (!has_scales(type)) return {};
    const size_t set = call % x_sets;
    return {.codes = x.as<fp8_e4m3>() + set * x_bytes,
            .scales = x_scales.as<float>() + set * scale_stride() * scale_runs(),
            .stride = s.k,
            .scale_stride = scale_stride(),
            .power_of_two = false,
            .format = cuda::row_format_of(type)};
  }
  double bytes() const {
    const int64_t w_scale_rows = is_channel_scaled(type) ? s.n : (s.n + 127) / 128;
    const auto scales = static_cast<double>(scale_runs() * (rows + w_scale_rows * s.groups)) * 4.0;
    return static_cast<double>(w_bytes + x_bytes) + static_cast<double>(rows * s.n) * 2.0 +
           (has_scales(type) ? scales : 0.0);
  }
  double flop() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(s.n) * static_cast<double>(s.k);
  }
};

}  // namespace hadal::bench
