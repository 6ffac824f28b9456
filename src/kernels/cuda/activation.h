// Activations quantised for FP8 linears: e4m3 codes with one float32 scale for each 128 consecutive values of
// a row (DeepSeek-V3, arXiv 2412.19437 §3.3). Free of CUDA headers.
//
// Per group: scale = amax / 448 (1 where amax is 0), code = e4m3(value / scale) to nearest even, saturating.
// With ue8m0 (`power_of_two`), scale is rounded up to the next power of two.
#pragma once

#include <cstdint>

#include "base/float_types.h"

namespace hadal::cuda {

inline constexpr int kQuantGroup = 128;

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

struct Fp8Rows {
  fp8_e4m3* codes = nullptr;  // [m, stride], stride a multiple of 128; zero codes from the width on
  float* scales = nullptr;    // [stride / 128, scale_stride]: column g holds group g of every row
  int64_t stride = 0;
  int64_t scale_stride = 0;  // ≥ m, a multiple of 4
  bool power_of_two = false;

  explicit constexpr operator bool() const { return codes != nullptr; }
};

}  // namespace hadal::cuda
