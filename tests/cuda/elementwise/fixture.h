// Holds the inputs and checks that the element-wise tests share.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/elementwise/elementwise.h"
#include "tests/cuda/device_array.h"

namespace hadal::testing {

inline cuda::Launch launch_on_test_stream(bool reference, bool pdl = true) {
  return {.stream = test_stream().handle(), .pdl = pdl, .reference = reference};
}

inline std::vector<float> random_floats(size_t count, uint64_t seed, float sigma = 1.0F, float mean = 0.0F) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(mean, sigma);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Holds codes and scales on the device with poison all around.
struct DeviceFp8 {
  DeviceFp8(int64_t rows, int64_t width, int64_t stride_padding, int64_t row_padding, bool power_of_two,
            cuda::RowFormat format = cuda::RowFormat::kE4m3Groups)
      : num_rows(rows),
        stride(cuda::round_up(width, cuda::kQuantGroup) + stride_padding),
        scale_stride(cuda::round_up(rows + row_padding, 4)),
        codes(static_cast<size_t>((rows + 1) * stride)),
        scales(static_cast<size_t>(stride / cuda::kQuantGroup * scale_stride)),
        view{codes.data(),
             scales.data(),
             stride,
             scale_stride,
             power_of_two && format == cuda::RowFormat::kE4m3Groups,
             format} {}

  int64_t num_rows, stride, scale_stride;
  DeviceArray<fp8_e4m3> codes;
  DeviceArray<float> scales;
  cuda::QuantizedRows view;
};

// Returns the position of a code on the line of representable values.
inline int ordinal(uint8_t bits) {
  return (bits & 0x80) != 0 ? -(bits & 0x7f) : bits;
}
inline int ordinal(uint16_t bits) {
  return (bits & 0x8000) != 0 ? -(bits & 0x7fff) : bits;
}

inline constexpr cuda::RowFormat kRowFormats[] = {cuda::RowFormat::kE4m3Groups, cuda::RowFormat::kInt8Groups,
                                                  cuda::RowFormat::kE4m3Tokens, cuda::RowFormat::kInt8Tokens};

// Returns the code nearest to a quotient.
inline uint8_t nearest_code(cuda::RowFormat format, float quotient) {
  if (!cuda::is_int8(format)) return to_fp8_e4m3(quotient).bits;
  return static_cast<uint8_t>(std::lrint(std::min(127.0F, std::max(-128.0F, quotient))));
}
inline int ordinal(cuda::RowFormat format, uint8_t bits) {
  return cuda::is_int8(format) ? static_cast<int8_t>(bits) : ordinal(bits);
}

// Checks scales, codes (within one, and nearly all equal), zero padding, and that nothing else was written.
// `expected` is [rows, width].
inline void expect_quantized(const DeviceFp8& out, const std::vector<double>& expected, int64_t width) {
  const auto codes = out.codes.download();
  const auto scales = out.scales.download();
  int64_t off_by_one = 0;
  const cuda::RowFormat format = out.view.format;
  const bool per_token = cuda::is_per_token(format);
  const double most = cuda::is_int8(format) ? cuda::kInt8Max : kFp8E4m3Max;
  for (int64_t row = 0; row < out.num_rows; ++row) {
    const auto largest = [&](int64_t begin, int64_t end) {
      double amax = 0.0;
      for (int64_t c = begin; c < end; ++c) amax = std::max(amax, std::fabs(expected[row * width + c]));
      return amax;
    };
    double amax = per_token ? largest(0, width) : 0.0;
    for (int64_t group = 0; group < out.stride / cuda::kQuantGroup; ++group) {
      const int64_t begin = group * cuda::kQuantGroup;
      if (!per_token) amax = largest(begin, std::min(begin + cuda::kQuantGroup, width));
      const float scale = scales[per_token ? row : group * out.scale_stride + row];
      double wanted = amax > 0.0 ? amax / most : 1.0;
      if (out.view.power_of_two) wanted = std::exp2(std::ceil(std::log2(wanted) - 1e-5));
      ASSERT_NEAR(scale / wanted, 1.0, 4e-6) << "scale of row " << row << ", group " << group;
      if (out.view.power_of_two) {
        int exponent = 0;
        ASSERT_EQ(std::frexp(scale, &exponent), 0.5F);
      }
      for (int64_t c = begin; c < begin + cuda::kQuantGroup; ++c) {
        const uint8_t got = codes[row * out.stride + c].bits;
        if (c >= width) {
          ASSERT_EQ(got, 0) << "padding of row " << row << ", column " << c;
          continue;
        }
        const uint8_t want = nearest_code(format, static_cast<float>(expected[row * width + c] / scale));
        ASSERT_LE(std::abs(ordinal(format, got) - ordinal(format, want)), 1)
            << "row " << row << ", column " << c << ": code " << int{got} << ", expected " << int{want};
        off_by_one += ordinal(format, got) != ordinal(format, want) ? 1 : 0;
      }
    }
    for (int64_t group = 0; row + 1 == out.num_rows && group < out.stride / cuda::kQuantGroup; ++group) {
      for (int64_t r = per_token && group > 0 ? 0 : out.num_rows; r < out.scale_stride; ++r) {
        ASSERT_TRUE(std::isnan(scales[group * out.scale_stride + r])) << "scale of a row that does not exist";
      }
    }
  }
  for (int64_t c = 0; c < out.stride; ++c) ASSERT_EQ(codes[out.num_rows * out.stride + c].bits, 0xff);
  EXPECT_LE(off_by_one, 2 + out.num_rows * width / 500) << "codes one off, of " << out.num_rows * width;
}

// Expects the bf16 nearest to each expected value, allowing for the error of float32 before the rounding.
// After them `out` must still be poisoned.
inline void expect_rounded(const std::vector<bf16>& out, const std::vector<double>& expected,
                           double float_error = 3e-6) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const double got = static_cast<double>(to_float(out[i]));
    const double limit = std::fabs(expected[i]) * (0x1p-8 + float_error) + 1e-30;  // half a step is ≤ 2⁻⁸
    ASSERT_LE(std::fabs(got - expected[i]), limit)
        << "element " << i << ": " << got << ", expected " << expected[i];
  }
  for (size_t i = expected.size(); i < out.size(); ++i)
    ASSERT_EQ(out[i].bits, 0xffff) << "wrote past the end";
}

// Names the two kernels of every op "tuned" and "plain".
class BothKernels : public ::testing::TestWithParam<bool> {
 protected:
  cuda::Launch launch() const { return launch_on_test_stream(GetParam()); }
};
inline std::string kernel_name(const ::testing::TestParamInfo<bool>& info) {
  return info.param ? "plain" : "tuned";
}

}  // namespace hadal::testing
