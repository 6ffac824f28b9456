// Defines how activations are quantised for linears with 8-bit weights: as e4m3 or int8 codes with one
// float32 scale for each 128 consecutive values of a row (DeepSeek-V3, arXiv 2412.19437 §3.3), or with one
// scale per row ("per token"). This header includes no CUDA header.
//
// The scale is the largest magnitude (amax) of the group or row divided by 448 (int8: by 127), or 1 if amax
// is 0. A code is value / scale, rounded to nearest even and saturated. With ue8m0 scales (`power_of_two`,
// e4m3 groups only), the scale is rounded up to the next power of two. If a norm kernel computes a row's
// codes, the row's amax may be off by one or two roundings.
#pragma once

#include <cstdint>

#include "base/float_types.h"
#include "kernels/params/linear.h"

namespace hadal::cuda {

inline constexpr int kQuantGroup = 128;

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

inline constexpr float kInt8Max = 127.0F;

enum class RowFormat : uint8_t { kE4m3Groups, kInt8Groups, kE4m3Tokens, kInt8Tokens };

constexpr bool is_int8(RowFormat format) {
  return format == RowFormat::kInt8Groups || format == RowFormat::kInt8Tokens;
}
// Returns true if there is one scale per row.
constexpr bool is_per_token(RowFormat format) {
  return format == RowFormat::kE4m3Tokens || format == RowFormat::kInt8Tokens;
}
// Returns the format of the rows that linears with weights of this type read: groups for weights with block
// scales, tokens for weights with channel scales. The type must be one of the 8-bit types.
constexpr RowFormat row_format_of(WeightType type) {
  if (is_block_scaled(type))
    return type == WeightType::kInt8Block ? RowFormat::kInt8Groups : RowFormat::kE4m3Groups;
  return type == WeightType::kInt8Channel ? RowFormat::kInt8Tokens : RowFormat::kE4m3Tokens;
}

struct QuantizedRows {
  // [m, stride], stride a multiple of 128; codes from the width on are zero; int8_t in the int8 formats
  fp8_e4m3* codes = nullptr;
  // Groups: [stride / 128, scale_stride], column g holds group g of every row. Tokens: [m].
  float* scales = nullptr;
  int64_t stride = 0;
  int64_t scale_stride = 0;  // ≥ m, a multiple of 4
  bool power_of_two = false;
  RowFormat format = RowFormat::kE4m3Groups;

  explicit constexpr operator bool() const { return codes != nullptr; }
  // Returns the number of contiguous runs of scales. The runs begin scale_stride elements apart.
  constexpr int64_t scale_runs() const { return is_per_token(format) ? 1 : stride / kQuantGroup; }
};

// Describes rows [m, n] in the format that linears with weights of this type read. The caller sets the
// pointers.
constexpr QuantizedRows quantized_rows(WeightType type, int64_t m, int64_t n, bool power_of_two = false) {
  return {.stride = round_up(n, kQuantGroup),
          .scale_stride = round_up(m, 4),
          .power_of_two = power_of_two,
          .format = row_format_of(type)};
}

}  // namespace hadal::cuda
