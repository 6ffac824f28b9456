// Compares the experts' kernel for many rows, whose columns are tokens, with sums in float64. Some experts
// have no rows, one row, or all of them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/experts/columns/columns.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/experts/sampled_rows.h"
#include "tests/cuda/test_launch.h"

namespace hadal {
namespace {

using testing::DeviceArray;
using testing::rounded_to;
using testing::test_launch;

struct ColumnsCase {
  const char* name;
  std::vector<int> rows;  // rows of each routed expert
  int shared;             // experts that every token uses
  int num_tokens;
  int64_t n, k;
  bool exact;  // small integers: every sum is exact in float32
};

std::vector<ColumnsCase> cases() {
  std::vector<int> many(64);
  for (size_t e = 0; e < many.size(); ++e) many[e] = static_cast<int>(e * 37 % 200);
  std::vector<int> widths(32);
  for (size_t e = 0; e < widths.size(); ++e) widths[e] = static_cast<int>(8 * e + 1);
  return {
      {"OneTile", {256}, 0, 300, 128, 128, true},
      {"OneRow", {1}, 0, 4, 128, 64, true},
      {"EveryWidth", widths, 0, 300, 64, 192, true},
      {"Uneven", {1, 0, 129, 255, 256, 257, 0, 0, 300, 64, 65, 3}, 0, 500, 264, 320, true},
      {"Shared", {100, 0, 270, 33}, 2, 403, 192, 256, true},
      {"AllToOne", {0, 0, 1030, 0}, 1, 515, 136, 128, true},
      {"WholeSteps", {390, 384, 12}, 1, 393, 1408, 72, false},
      {"Spread", many, 2, 130, 136, 1408, false},
  };
}

// Checks gate and up with their activation (`activated`), or a plain product. T is bf16 or f16.
template <typename T>
void expect_sums_of_the_host(bool activated) {
  constexpr bool kF16 = std::is_same_v<T, f16>;
  constexpr double kStep = kF16 ? 0.125 : 1.0;  // the type's rounding step relative to bf16's
  for (const ColumnsCase& c : cases()) {
    const uint64_t seed = std::random_device{}();
    SCOPED_TRACE(fmt::format("{}, seed {}", c.name, seed));
    std::mt19937_64 random(seed);
    std::uniform_int_distribution<int> small(-2, 2);
    std::normal_distribution<float> normal(0.0F, 1.0F);
    const float sigma = activated ? 1.0F / std::sqrt(static_cast<float>(c.k)) : 1.0F;
    const auto value = [&] {
      return rounded_to<T>(c.exact ? static_cast<float>(small(random)) : normal(random));
    };
    std::vector<int32_t> offsets{0};
    for (const int rows : c.rows) offsets.push_back(offsets.back() + rows);
    const int routed = static_cast<int>(c.rows.size());
    const int num_experts = routed + (activated ? c.shared : 0);
    for (int e = routed; e < num_experts; ++e) offsets.push_back(offsets.back() + c.num_tokens);
    const int64_t rows = offsets.back();
    const int64_t w_rows = activated ? 2 * c.n : c.n;
    const int64_t stride = c.k + 8;  // rows of x and W are apart, with NaN between them
    std::vector<int32_t> token_of(rows);
    for (int64_t i = 0; i < rows; ++i) {
      token_of[i] = i < offsets[routed] ? static_cast<int32_t>(random() % c.num_tokens)
                                        : static_cast<int32_t>((i - offsets[routed]) % c.num_tokens);
    }
    std::vector<T> tokens(c.num_tokens * stride, T{0x7fff});
    for (size_t i = 0; i < tokens.size(); ++i)
      if (static_cast<int64_t>(i) % stride < c.k) tokens[i] = value();
    std::vector<T> w(num_experts * w_rows * stride, T{0x7fff});
    for (size_t i = 0; i < w.size(); ++i)
      if (static_cast<int64_t>(i) % stride < c.k)
        w[i] = rounded_to<T>(to_float(value()) * (c.exact ? 1.0F : sigma));
    // Rows are in order. If shared experts read `tokens`, their rows of x stay NaN.
    std::vector<T> sorted(rows * stride, T{0x7fff});
    for (int64_t i = 0; i < (activated ? offsets[routed] : rows); ++i)
      std::copy_n(&tokens[token_of[i] * stride], stride, &sorted[i * stride]);
    const DeviceArray<T> tokens_device(tokens);
    const DeviceArray<T> sorted_device(sorted);
    const DeviceArray<T> w_device(w);
    const DeviceArray<int32_t> offsets_device(offsets);
    DeviceArray<T> y(rows * c.n + 4096);  // the memory after the result must stay as it is
    cuda::ExpertColumnsParams p;
    p.f16 = kF16;
    p.x = sorted_device.data();
    p.x_stride = stride;
    if (activated) {
      p.tokens = tokens_device.data();
      p.tokens_stride = stride;
    }
    p.num_tokens = c.num_tokens;
    p.direct_from = routed;
    p.expert_offsets = offsets_device.data();
    p.num_rows = rows;
    p.num_x_rows = rows;
    p.num_experts = num_experts;
    p.w = w_device.data();
    p.w_row_stride = stride;
    p.expert_stride = w_rows * stride;
    p.n = c.n;
    p.k = c.k;
    p.y = y.data();
    p.activated = activated;
    const cuda::GroupedShape shape = cuda::columns_shape(p, test_launch().num_sms);
    ASSERT_TRUE(activated ? cuda::columns_support_activation(shape)
                          : supports(cuda::ProductKernel::kColumns, shape));
    cuda::expert_columns(p, test_launch());
    const std::vector<T> out = y.download();

    const auto sum_of = [&](int64_t expert, int64_t row, int64_t w_row) {
      double sum = 0.0;
      const T* a = &tokens[token_of[row] * stride];
      const T* b = &w[(expert * w_rows + w_row) * stride];
      for (int64_t j = 0; j < c.k; ++j) sum += static_cast<double>(to_float(a[j])) * to_float(b[j]);
      return sum;
    };
    // Gate and up are rounded to 16 bits before the activation.
    const auto rounded = [](double v) {
      return static_cast<double>(to_float(rounded_to<T>(static_cast<float>(v))));
    };
    const auto reference = [&](int64_t expert, int64_t row, int64_t column) {
      const double first = sum_of(expert, row, column);
      if (!activated) return first;
      const double gate = rounded(first);
      return gate / (1.0 + std::exp(-gate)) * rounded(sum_of(expert, row, c.n + column));
    };
    // Allows one step of the type; if activated, one for each of gate, up and the result.
    const double tolerance = kStep * (c.exact && !activated ? 0.0 : c.exact || !activated ? 8e-3 : 2.4e-2);
    // For a plain product, this also allows the error of float32 in partial sums of about √k that end near 0.
    const double least = activated || c.exact ? 0.05 * tolerance : 4e-4;
    const auto is_right = [&](float o, double r) {
      return std::abs(o - to_float(rounded_to<T>(static_cast<float>(r)))) <=
             std::max(tolerance * std::abs(r), least);
    };
    testing::expect_sampled_rows(out, offsets, c.n, random, reference, is_right, kStep * 2.5e-3);
    y.poison();
    cuda::expert_columns(p, test_launch());
    const std::vector<T> again = y.download();
    EXPECT_EQ(std::memcmp(again.data(), out.data(), out.size() * sizeof(T)), 0) << "bits of a second run";
    if (!activated || c.shared > 0) continue;
    // The same values are computed by a product and an activation in separate kernels.
    const DeviceArray<T> gate_up(rows * w_rows);
    p.tokens = nullptr;
    p.activated = false;
    p.n = w_rows;
    p.y = gate_up.data();
    cuda::expert_columns(p, test_launch());
    y.poison();
    cuda::silu_mul({.x = gate_up.data(), .m = rows, .n = c.n, .y = y.data(), .f16 = kF16}, test_launch());
    const std::vector<T> apart = y.download();
    EXPECT_EQ(std::memcmp(apart.data(), out.data(), out.size() * sizeof(T)), 0) << "bits of two kernels";
  }
}

struct Mode {
  bool activated, is_f16;
};
class ExpertColumns : public ::testing::TestWithParam<Mode> {};

TEST_P(ExpertColumns, MatchesSumsOnTheHost) {
  if (GetParam().is_f16) {
    expect_sums_of_the_host<f16>(GetParam().activated);
  } else {
    expect_sums_of_the_host<bf16>(GetParam().activated);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, ExpertColumns,
                         ::testing::Values(Mode{false, false}, Mode{true, false}, Mode{false, true},
                                           Mode{true, true}),
                         [](const auto& instance) {
                           return std::string(instance.param.activated ? "GateUp" : "Down") +
                                  (instance.param.is_f16 ? "F16" : "");
                         });

}  // namespace
}  // namespace hadal
