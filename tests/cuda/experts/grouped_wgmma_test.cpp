// Compares the tiled grouped product with sums on the host. Some experts have no rows, one row, or just under
// or over the rows of a tile.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/experts/variants.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/experts/sampled_rows.h"
#include "tests/cuda/test_launch.h"

namespace hadal {
namespace {

using cuda::kQuantGroup;
using testing::DeviceArray;
using testing::test_launch;

struct GroupedCase {
  const char* name;
  std::vector<int> rows;  // rows of each expert
  int64_t n, k;
  bool exact;  // small integers and power-of-two scales: every sum is exact in float32
};

std::vector<GroupedCase> cases() {
  std::vector<int> many(66);
  for (size_t e = 0; e < many.size(); ++e) many[e] = static_cast<int>(e * 37 % 200);
  std::vector<int> all(257, 8);
  all[256] = 700;
  return {
      {"OneTile", {128}, 128, 256, true},
      {"TallTile", {256}, 256, 256, true},
      {"Uneven", {1, 0, 129, 255, 256, 257, 0, 0, 300, 64, 65, 3}, 264, 320, true},
      {"TallTilesWithRests", {1100, 0, 1920, 65}, 264, 384, true},
      {"OneTallTileEach", {143, 200, 129, 256, 70}, 136, 256, true},
      {"FewRows", {3, 5, 0, 1, 90, 127}, 1408, 512, true},
      {"Spread", many, 136, 1408, false},
      {"AllExperts", all, 136, 256, true},
  };
}

class WgmmaGroupedLinear : public ::testing::TestWithParam<WeightType> {};

TEST_P(WgmmaGroupedLinear, MatchesSumsOnTheHost) {
  const WeightType type = GetParam();
  const bool fp8 = has_scales(type);  // or int8
  const bool int8 = is_int8(type);
  const bool channel = is_channel_scaled(type);
  for (const GroupedCase& c : cases()) {
    const uint64_t seed = std::random_device{}();
    SCOPED_TRACE(fmt::format("{}, seed {}", c.name, seed));
    std::mt19937_64 random(seed);
    std::uniform_int_distribution<int> small(-2, 2);
    std::normal_distribution<float> normal(0.0F, fp8 ? 100.0F : 1.0F);
    std::uniform_int_distribution<int> exponent(-1, 1);
    const auto value = [&] { return c.exact ? static_cast<float>(small(random)) : normal(random); };
    const auto scale = [&] { return std::ldexp(1.0F, exponent(random)); };
    const auto num_experts = static_cast<int64_t>(c.rows.size());
    std::vector<int32_t> offsets{0};
    for (const int rows : c.rows) offsets.push_back(offsets.back() + rows);
    const int64_t rows = offsets.back();
    const int64_t groups = cuda::round_up(c.k, kQuantGroup) / kQuantGroup;
    const int64_t width = fp8 ? groups * kQuantGroup : c.k;
    const int64_t blocks = (c.n + 127) / 128;
    // These return the nearest code, and its value.
    const auto code_of = [&](float v) {
      if (!int8) return to_fp8_e4m3(v);
      return fp8_e4m3{static_cast<uint8_t>(std::lround(std::min(127.0F, std::max(-127.0F, v))))};
    };
    const auto value_of = [&](fp8_e4m3 code) {
      return int8 ? static_cast<float>(static_cast<int8_t>(code.bits)) : to_float(code);
    };
    const int64_t scale_stride = cuda::round_up(rows, 4) + 4;
    // These are the device's values as float.
    std::vector<float> x(rows * width, 0.0F);
    std::vector<float> w(num_experts * c.n * width, 0.0F);
    for (auto* matrix : {&x, &w}) {
      for (size_t i = 0; i < matrix->size(); ++i) {
        if (static_cast<int64_t>(i) % width >= c.k) continue;
        (*matrix)[i] = fp8 ? value_of(code_of(value())) : to_float(to_bf16(value()));
      }
    }
    std::vector<float> x_scales(groups * scale_stride, NAN);
    const int64_t expert_scales = channel ? c.n : blocks * groups;
    std::vector<float> w_scales(num_experts * expert_scales);
    for (int64_t g = 0; g < (channel ? 1 : groups); ++g)
      for (int64_t i = 0; i < rows; ++i) x_scales[g * scale_stride + i] = scale();
    for (float& s : w_scales) s = scale();
    const auto as_bf16 = [&](const std::vector<float>& values) {
      std::vector<bf16> out(fp8 ? 0 : values.size());
      for (size_t i = 0; i < out.size(); ++i) out[i] = to_bf16(values[i]);
      return out;
    };
    const auto as_fp8 = [&](const std::vector<float>& values) {
      std::vector<fp8_e4m3> out(fp8 ? values.size() : 0);
      for (size_t i = 0; i < out.size(); ++i) out[i] = code_of(values[i]);
      return out;
    };
    const DeviceArray<bf16> x_bf16(as_bf16(x));
    const DeviceArray<bf16> w_bf16(as_bf16(w));
    const DeviceArray<fp8_e4m3> x_fp8(as_fp8(x));
    const DeviceArray<fp8_e4m3> w_fp8(as_fp8(w));
    const DeviceArray<float> x_scales_device(x_scales);
    const DeviceArray<float> w_scales_device(w_scales);
    const DeviceArray<int32_t> offsets_device(offsets);
    DeviceArray<bf16> y(rows * c.n + 4096);  // the memory after the result must stay as it is
    cuda::GroupedLinearParams p;
    if (fp8) {
      p.x_quantized.codes = x_fp8.data();
      p.x_quantized.scales = x_scales_device.data();
      p.x_quantized.stride = width;
      p.x_quantized.scale_stride = scale_stride;
      p.x_quantized.format = cuda::row_format_of(type);
      p.w.data = w_fp8.data();
      p.w.scales = w_scales_device.data();
      p.w.scale_stride = groups;
    } else {
      p.x = x_bf16.data();
      p.x_stride = width;
      p.w.data = w_bf16.data();
    }
    p.expert_offsets = offsets_device.data();
    p.num_rows = rows;
    p.num_experts = static_cast<int>(num_experts);
    p.w.type = type;
    p.w.n = c.n;
    p.w.k = c.k;
    p.w.row_stride = width;
    p.expert_stride = c.n * width;
    p.expert_scale_stride = expert_scales;
    p.y = y.data();
    ASSERT_TRUE(supports(cuda::ProductKernel::kTiled, cuda::grouped_shape(p, test_launch().num_sms)));
    const auto reference = [&](int64_t expert, int64_t row, int64_t column) {
      double sum = 0.0;
      for (int64_t g = 0; g < groups; ++g) {
        double block = 0.0;
        for (int64_t j = g * kQuantGroup; j < std::min((g + 1) * kQuantGroup, width); ++j)
          block += static_cast<double>(x[row * width + j]) *
                   static_cast<double>(w[(expert * c.n + column) * width + j]);
        if (fp8 && !channel)
          block *= static_cast<double>(x_scales[g * scale_stride + row]) *
                   static_cast<double>(w_scales[(expert * blocks + column / 128) * groups + g]);
        sum += block;
      }
      if (channel)
        sum *= static_cast<double>(x_scales[row]) * static_cast<double>(w_scales[expert * c.n + column]);
      return sum;
    };
    for (const cuda::GroupedTile tile : cuda::kGroupedTiles) {
      SCOPED_TRACE(fmt::format("tile {}", static_cast<int>(tile)));
      y.poison();
      cuda::wgmma_grouped_linear(p, test_launch(), tile);
      const std::vector<bf16> out = y.download();
      const auto is_right = [&](float o, double r) {
        return !c.exact || o == to_float(to_bf16(static_cast<float>(r)));
      };
      testing::expect_sampled_rows(out, offsets, c.n, random, reference, is_right, 4e-3);
      y.poison();
      cuda::wgmma_grouped_linear(p, test_launch(), tile);
      const std::vector<bf16> again = y.download();
      EXPECT_EQ(std::memcmp(again.data(), out.data(), out.size() * sizeof(bf16)), 0)
          << "bits of a second run";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, WgmmaGroupedLinear,
                         ::testing::Values(WeightType::kBF16, WeightType::kFp8Block, WeightType::kInt8Block,
                                           WeightType::kFp8Channel, WeightType::kInt8Channel),
                         [](const auto& instance) {
                           return instance.param == WeightType::kBF16         ? "Bf16"
                                  : instance.param == WeightType::kFp8Block   ? "Fp8"
                                  : instance.param == WeightType::kInt8Block  ? "Int8"
                                  : instance.param == WeightType::kFp8Channel ? "Fp8Channel"
                                                                              : "Int8Channel";
                         });

}  // namespace
}  // namespace hadal
