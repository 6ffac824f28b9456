// permute_rows only moves bits, so everything is compared exactly.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "kernels/cuda/experts/experts.h"
#include "tests/cuda/device_array.h"

namespace hadal::testing {
namespace {

class PermuteRows : public ::testing::TestWithParam<bool> {
 protected:
  cuda::Launch launch() const { return {.stream = test_stream().handle(), .reference = GetParam()}; }
};

std::vector<int32_t> random_tokens(int64_t count, int64_t m, std::mt19937_64& random) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % m);
  return tokens;
}

TEST_P(PermuteRows, MovesBf16) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (const int64_t n : {2048, 7168, 1408, 8, 75}) {
    for (const int64_t rows : {1, 9, 301}) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(n));
      const int64_t m = 37;
      const auto x = random_bf16(m * n, random());
      const auto tokens = random_tokens(rows, m, random);
      const DeviceArray<bf16> device_x(x);
      const DeviceArray<int32_t> device_tokens(tokens);
      const DeviceArray<bf16> y((rows + 1) * n);
      permute_rows(
          {.x = device_x.data(), .token_of = device_tokens.data(), .y = y.data(), .num_rows = rows, .n = n},
          launch());
      const auto out = y.download();
      for (int64_t i = 0; i < (rows + 1) * n; ++i) {
        const uint16_t want = i < rows * n ? x[tokens[i / n] * n + i % n].bits : 0xffff;
        ASSERT_EQ(out[i].bits, want) << "row " << i / n << ", column " << i % n;
      }
    }
  }
}

TEST_P(PermuteRows, MovesFp8WithItsScales) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (const int64_t n : {2048, 7168, 1408, 200}) {
    for (const int64_t rows : {1, 9, 301}) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(n));
      const int64_t m = 37;
      const int64_t stride = cuda::round_up(n, 128);
      const int64_t groups = stride / 128;
      std::vector<fp8_e4m3> codes(m * stride);
      for (int64_t i = 0; i < m * stride; ++i) {
        codes[i].bits = i % stride < n ? static_cast<uint8_t>(random()) : uint8_t{0};
      }
      std::vector<float> scales(groups * 40);
      for (float& scale : scales) scale = static_cast<float>(random() % 1000);
      const auto tokens = random_tokens(rows, m, random);
      const int64_t scale_stride = cuda::round_up(rows + 1, 4);
      const DeviceArray<fp8_e4m3> device_codes(codes);
      const DeviceArray<float> device_scales(scales);
      const DeviceArray<int32_t> device_tokens(tokens);
      const DeviceArray<fp8_e4m3> y((rows + 1) * stride);
      const DeviceArray<float> y_scales(groups * scale_stride);
      permute_rows({.x_quantized = {device_codes.data(), device_scales.data(), stride, 40},
                    .token_of = device_tokens.data(),
                    .y_quantized = {y.data(), y_scales.data(), stride, scale_stride},
                    .num_rows = rows,
                    .n = n},
                   launch());
      const auto out = y.download();
      const auto out_scales = y_scales.download();
      for (int64_t i = 0; i < (rows + 1) * stride; ++i) {
        const uint8_t want =
            i < rows * stride ? codes[tokens[i / stride] * stride + i % stride].bits : uint8_t{0xff};
        ASSERT_EQ(out[i].bits, want) << "row " << i / stride << ", column " << i % stride;
      }
      for (int64_t i = 0; i < groups * scale_stride; ++i) {
        const int64_t row = i % scale_stride;
        if (row < rows) {
          ASSERT_EQ(out_scales[i], scales[i / scale_stride * 40 + tokens[row]]) << "scale " << i;
        } else {
          ASSERT_TRUE(std::isnan(out_scales[i])) << "scale of a row that does not exist";
        }
      }
    }
  }
}

// These formats have one scale per row.
TEST_P(PermuteRows, MovesInt8WithOneScalePerRow) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const int64_t m = 37;
  const int64_t n = 1408;
  for (const int64_t rows : {1, 9, 301}) {
    std::vector<fp8_e4m3> codes(m * n);
    for (fp8_e4m3& code : codes) code.bits = static_cast<uint8_t>(random());
    std::vector<float> scales(m);
    for (float& scale : scales) scale = static_cast<float>(random() % 1000);
    const auto tokens = random_tokens(rows, m, random);
    const int64_t scale_stride = cuda::round_up(rows + 1, 4);
    const DeviceArray<fp8_e4m3> device_codes(codes);
    const DeviceArray<float> device_scales(scales);
    const DeviceArray<int32_t> device_tokens(tokens);
    const DeviceArray<fp8_e4m3> y(rows * n);
    const DeviceArray<float> y_scales(2 * scale_stride);
    constexpr cuda::RowFormat kFormat = cuda::RowFormat::kInt8Tokens;
    permute_rows({.x_quantized = {device_codes.data(), device_scales.data(), n, 40, false, kFormat},
                  .token_of = device_tokens.data(),
                  .y_quantized = {y.data(), y_scales.data(), n, scale_stride, false, kFormat},
                  .num_rows = rows,
                  .n = n},
                 launch());
    const auto out = y.download();
    const auto out_scales = y_scales.download();
    for (int64_t i = 0; i < rows * n; ++i)
      ASSERT_EQ(out[i].bits, codes[tokens[i / n] * n + i % n].bits) << "row " << i / n;
    for (int64_t i = 0; i < 2 * scale_stride; ++i) {
      if (i < rows) {
        ASSERT_EQ(out_scales[i], scales[tokens[i]]) << "scale " << i;
      } else {
        ASSERT_TRUE(std::isnan(out_scales[i])) << "scale " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, PermuteRows, ::testing::Values(false, true),
                         [](const auto& suite) { return suite.param ? "plain" : "tuned"; });

TEST(SpreadRows, EachTokenGoesToItsFirstRows) {
  for (const bool reference : {false, true}) {
    for (const int64_t n : {8, 64, 2048, 2056, 7168, 60}) {
      const uint64_t seed = std::random_device{}();
      SCOPED_TRACE("n " + std::to_string(n) + (reference ? ", plain, seed " : ", tuned, seed ") +
                   std::to_string(seed));
      constexpr int kTokens = 37;
      constexpr int kSlots = 8;
      constexpr int kTopK = 6;
      const std::vector<bf16> x = random_bf16(kTokens * n, seed);
      std::vector<int32_t> rows(kTokens * kTopK);
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
      std::mt19937_64 random(seed);
      std::shuffle(rows.begin(), rows.end(), random);
      std::vector<int32_t> row_of(kTokens * kSlots, -1);  // slots from top_k on are not read
      for (int t = 0; t < kTokens; ++t)
        for (int j = 0; j < kTopK; ++j) row_of[t * kSlots + j] = rows[t * kTopK + j];
      const DeviceArray<bf16> device_x(x);
      const DeviceArray<int32_t> device_row_of(row_of);
      const DeviceArray<bf16> y((rows.size() + 1) * n);
      cuda::spread_rows({.x = device_x.data(),
                         .row_of = device_row_of.data(),
                         .num_slots = kSlots,
                         .top_k = kTopK,
                         .y = y.data(),
                         .m = kTokens,
                         .n = n},
                        {.stream = test_stream().handle(), .reference = reference});
      const std::vector<bf16> out = y.download();
      for (size_t i = 0; i < rows.size(); ++i) {
        ASSERT_EQ(std::memcmp(&out[rows[i] * n], &x[i / kTopK * n], n * sizeof(bf16)), 0) << "pair " << i;
      }
      for (size_t i = rows.size() * n; i < out.size(); ++i) ASSERT_EQ(out[i].bits, 0xffff);
    }
  }
}

}  // namespace
}  // namespace hadal::testing
