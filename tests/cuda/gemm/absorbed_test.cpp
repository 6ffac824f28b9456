// absorb_query and expand_value: the plain kernels against double precision, the tuned ones too, over token
// counts around every tile border.
#include <gtest/gtest.h>

#include "kernels/cuda/gemm/variants.h"
#include "tests/cuda/gemm/linear_case.h"

namespace hadal::testing {
namespace {

cuda::Launch test_launch(bool reference) {
  return {.stream = test_stream().handle(), .num_sms = 132, .pdl = true, .reference = reference};
}

// Weights [rows, k], dense, bf16 or FP8, and their values on the host.
struct Weights {
  std::vector<double> values;
  DeviceArray<bf16> bf16_data;
  DeviceArray<fp8_e4m3> codes;
  DeviceArray<float> scales;
  MatrixWeight w;

  Weights(bool fp8, int64_t rows, int64_t k, uint64_t seed) {
    values.resize(rows * k);
    w.n = rows;
    w.k = k;
    w.row_stride = k;
    if (!fp8) {
      const std::vector<bf16> host = random_bf16(rows * k, seed, 0.05F);
      for (size_t i = 0; i < host.size(); ++i) values[i] = to_float(host[i]);
      bf16_data = DeviceArray<bf16>(host);
      w.data = bf16_data.data();
      w.type = WeightType::kBF16;
      return;
    }
    const std::vector<fp8_e4m3> host = random_codes(rows, k, k, seed);
    const int64_t blocks = k / 128;
    const std::vector<float> host_scales = random_scales(rows / 128 * blocks, seed + 1);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < k; ++i) {
        values[r * k + i] =
            static_cast<double>(to_float(host[r * k + i])) * host_scales[r / 128 * blocks + i / 128];
      }
    }
    codes = DeviceArray<fp8_e4m3>(host);
    scales = DeviceArray<float>(host_scales);
    w.data = codes.data();
    w.type = WeightType::kFp8Block;
    w.scales = scales.data();
    w.scale_stride = blocks;
  }
};

void check_absorb(bool fp8, int64_t m, int heads, bool reference, uint64_t seed) {
  const Weights weights(fp8, heads * 512, 128, seed);
  // Queries as they lie behind q_b: 192 a head, a few more a row; NaN in what is not to be read.
  const int64_t head_stride = 192;
  const int64_t row_stride = heads * head_stride + 64;
  std::vector<bf16> q(m * row_stride, bf16{0xffff});
  const std::vector<bf16> values = random_bf16(m * heads * 128, seed + 2);
  for (int64_t i = 0; i < m * heads; ++i) {
    for (int64_t j = 0; j < 128; ++j) {
      q[i / heads * row_stride + i % heads * head_stride + j] = values[i * 128 + j];
    }
  }
  const DeviceArray<bf16> device_q(q);
  DeviceArray<bf16> y(m * heads * 576);
  cuda::absorb_query({.q = device_q.data(),
                      .q_row_stride = row_stride,
                      .q_head_stride = head_stride,
                      .w_uk = weights.w,
                      .y = y.data(),
                      .m = m,
                      .num_heads = heads},
                     test_launch(reference));
  const std::vector<bf16> rows = y.download();
  std::vector<double> out;
  std::vector<double> want;
  for (int64_t i = 0; i < m * heads; ++i) {
    const int64_t head = i % heads;
    for (int64_t j = 0; j < 512; ++j) {
      double sum = 0.0;
      for (int64_t k = 0; k < 128; ++k)
        sum += to_float(values[i * 128 + k]) * weights.values[(head * 512 + j) * 128 + k];
      want.push_back(sum);
      out.push_back(to_float(rows[i * 576 + j]));
    }
    for (int64_t j = 512; j < 576; ++j)
      ASSERT_EQ(rows[i * 576 + j].bits, 0xffff) << "wrote behind the latent part";
  }
  EXPECT_LE(relative_difference(out, want), 4e-3)
      << "fp8 " << fp8 << " m " << m << " heads " << heads << ": " << first_difference(out, want, 512, 4e-2);
}

enum class Output { kBf16, kFp8, kFp8PowerOfTwo };

void check_expand(bool fp8, int64_t m, int heads, Output output, bool reference, uint64_t seed) {
  const Weights weights(fp8, heads * 256, 512, seed);
  const std::vector<bf16> o = random_bf16(m * heads * 512, seed + 2);
  const DeviceArray<bf16> device_o(o);
  const int64_t width = heads * 128;
  cuda::ExpandValueParams p{.o = device_o.data(), .kv_b = weights.w, .m = m, .num_heads = heads};
  DeviceArray<bf16> y(m * (width + 8));
  DeviceArray<fp8_e4m3> codes(m * (width + 128));
  const int64_t scale_stride = cuda::round_up(m, 4) + 4;
  DeviceArray<float> scales(heads * scale_stride);
  if (output == Output::kBf16) {
    p.y = y.data();
    p.y_stride = width + 8;
  } else {
    p.y_fp8 = {.codes = codes.data(),
               .scales = scales.data(),
               .stride = width + 128,
               .scale_stride = scale_stride,
               .power_of_two = output == Output::kFp8PowerOfTwo};
  }
  cuda::expand_value(p, test_launch(reference));
  std::vector<double> want(m * width);
  std::vector<double> out(m * width);
  const std::vector<bf16> rows = y.download();
  const std::vector<fp8_e4m3> out_codes = codes.download();
  const std::vector<float> out_scales = scales.download();
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      double amax = 0.0;
      for (int64_t j = 0; j < 128; ++j) {
        double sum = 0.0;
        for (int64_t k = 0; k < 512; ++k) {
          sum += to_float(o[(i * heads + h) * 512 + k]) * weights.values[(h * 256 + 128 + j) * 512 + k];
        }
        want[i * width + h * 128 + j] = sum;
        amax = std::max(amax, std::abs(sum));
        if (output == Output::kBf16) {
          out[i * width + h * 128 + j] = to_float(rows[i * (width + 8) + h * 128 + j]);
        } else {
          out[i * width + h * 128 + j] =
              static_cast<double>(to_float(out_codes[i * (width + 128) + h * 128 + j])) *
              out_scales[h * scale_stride + i];
        }
      }
      if (output == Output::kBf16) continue;
      const double scale = out_scales[h * scale_stride + i];
      if (output == Output::kFp8) {
        ASSERT_NEAR(scale / (amax / 448.0), 1.0, 1e-4) << "row " << i << " head " << h;
      } else {
        ASSERT_EQ(std::exp2(std::round(std::log2(scale))), scale);
        ASSERT_GE(scale, amax / 448.0 * (1 - 1e-4));
        ASSERT_LE(scale, amax / 448.0 * 2.0001);
      }
    }
  }
  const double tolerance = output == Output::kBf16 ? 4e-3 : 3.2e-2;  // e4m3 keeps three bits
  EXPECT_LE(relative_difference(out, want), tolerance)
      << "fp8 " << fp8 << " m " << m << " heads " << heads << ": "
      << first_difference(out, want, width, 10 * tolerance);
}

TEST(AbsorbQuery, Plain) {
  for (const bool fp8 : {false, true}) check_absorb(fp8, 3, 2, true, 11);
}
TEST(AbsorbQuery, TokenCountsAndHeads) {
  uint64_t seed = 100;
  for (const bool fp8 : {false, true}) {
    for (const int64_t m : {1, 2, 8, 9, 16, 17, 40}) check_absorb(fp8, m, 4, false, seed += 10);
    check_absorb(fp8, 3, 16, false, seed += 10);
    check_absorb(fp8, 5, 1, false, seed += 10);
    check_absorb(fp8, 150, 8, false, seed += 10);
    check_absorb(fp8, 20, 128, false, seed += 10);
  }
}
TEST(ExpandValue, Plain) {
  for (const bool fp8 : {false, true}) {
    for (const Output output : {Output::kBf16, Output::kFp8, Output::kFp8PowerOfTwo}) {
      check_expand(fp8, 3, 2, output, true, 21);
    }
  }
}
TEST(ExpandValue, TokenCountsAndHeads) {
  uint64_t seed = 500;
  for (const bool fp8 : {false, true}) {
    for (const Output output : {Output::kBf16, Output::kFp8, Output::kFp8PowerOfTwo}) {
      for (const int64_t m : {1, 7, 16, 17, 40}) check_expand(fp8, m, 4, output, false, seed += 10);
      check_expand(fp8, 2, 16, output, false, seed += 10);
      check_expand(fp8, 18, 100, output, false, seed += 10);  // wide tiles
    }
    check_expand(fp8, 70, 50, Output::kFp8, false, seed += 10);
  }
}

}  // namespace
}  // namespace hadal::testing
