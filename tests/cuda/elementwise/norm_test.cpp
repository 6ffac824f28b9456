// Compares add_rms_norm and add_residual with loops in double; the residual sums are exact.
#include "tests/cuda/elementwise/fixture.h"

namespace hadal::testing {
namespace {

using cuda::AddRmsNormParams;
using cuda::NormInput;

enum class Input { kNone, kDense, kExperts, kParts };
enum class Rows { kAll, kSome };

struct NormCase {
  int64_t m, n;
  Input input;
  bool bf16_out, fp8_out;
  Rows rows = Rows::kAll;
  int top_k = 0;  // of kParts: their number
  bool power_of_two = false;
  int num_sms = 132;  // 1: few rows run on the kernels for many
};

// Holds one block input of either kind for `m` residual rows, and the values that it adds.
struct HostInput {
  HostInput(Input kind, int64_t m, int64_t n, int num_choices, uint64_t seed) : top_k(num_choices) {
    if (kind == Input::kDense) {
      stride = n + 16;
      const auto values = random_bf16(m * stride, seed);
      dense = DeviceArray<bf16>(values);
      added.resize(m * n);
      for (int64_t i = 0; i < m * n; ++i) added[i] = to_float(values[i / n * stride + i % n]);
    } else if (kind == Input::kParts) {
      added.assign(m * n, 0.0F);
      for (int part = 0; part < num_choices; ++part) {
        const auto values = random_bf16(m * n, seed + part);
        parts.emplace_back(values);
        for (int64_t i = 0; i < m * n; ++i) added[i] += to_float(values[i]);
      }
    } else if (kind == Input::kExperts) {
      const auto values = random_bf16(m * top_k * n, seed);
      const auto factors = random_floats(m * top_k, seed + 1, 0.3F);
      std::vector<int32_t> rows(m * top_k);
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
      std::shuffle(rows.begin(), rows.end(), std::mt19937_64(seed + 2));
      expert_rows = DeviceArray<bf16>(values);
      weights = DeviceArray<float>(factors);
      row_of = DeviceArray<int32_t>(rows);
      added.assign(m * n, 0.0F);
      for (int64_t i = 0; i < m * n; ++i) {
        for (int j = 0; j < top_k; ++j) {
          const int64_t pair = i / n * top_k + j;
          added[i] = std::fma(factors[pair], to_float(values[rows[pair] * n + i % n]), added[i]);
        }
      }
    }
  }
  NormInput view() const {
    if (dense.size() > 0) return {.dense = dense.data(), .x_stride = stride};
    if (!parts.empty()) {
      NormInput input;
      input.exchanged.num_ranks = static_cast<int>(parts.size());
      for (size_t r = 0; r < parts.size(); ++r) input.exchanged.parts[r] = parts[r].data();
      return input;
    }
    if (expert_rows.size() == 0) return {};
    return {.expert_rows = expert_rows.data(),
            .row_of = row_of.data(),
            .weights = weights.data(),
            .top_k = top_k};
  }

  int top_k;
  int64_t stride = 0;
  DeviceArray<bf16> dense, expert_rows;
  std::vector<DeviceArray<bf16>> parts;
  DeviceArray<float> weights;
  DeviceArray<int32_t> row_of;
  std::vector<float> added;  // [m, n]; empty: nothing
};

class AddRmsNorm : public BothKernels {
 protected:
  // Checks every format of rows; large cases are checked with the first format only.
  void check(const NormCase& c) {
    for (const cuda::RowFormat format : kRowFormats) {
      check(c, format);
      if (HasFatalFailure() || !c.fp8_out || c.m * c.n > (1 << 20)) return;
    }
  }
  void check(const NormCase& c, cuda::RowFormat format) {
    const uint64_t seed = fresh_seed() + c.m * 31 + c.n;
    SCOPED_TRACE(fmt_case(c, seed) + " format " + std::to_string(static_cast<int>(format)));
    const int64_t source_rows = c.rows == Rows::kAll ? c.m : 2 * c.m + 1;
    const HostInput input(c.input, source_rows, c.n, c.top_k, seed);
    std::vector<float> residual = random_floats(source_rows * c.n, seed + 10, 2.0F, 0.25F);
    const std::vector<float> weight = random_floats(c.n, seed + 11, 0.2F, 1.0F);
    std::vector<int32_t> rows(c.m);
    std::mt19937_64 random(seed + 12);
    for (int32_t& row : rows) row = static_cast<int32_t>(random() % source_rows);
    if (c.rows == Rows::kSome) rows[c.m / 2] = -1;

    DeviceArray<float> device_residual(residual);
    const DeviceArray<float> device_weight(weight);
    const DeviceArray<int32_t> device_rows(rows);
    DeviceArray<float> residual_out((c.m + 1) * c.n);
    DeviceArray<bf16> y((c.m + 1) * c.n);
    DeviceFp8 y_quantized(c.m, c.n, c.m % 2 == 0 ? 128 : 0, 3, c.power_of_two, format);
    AddRmsNormParams params{.input = input.view(),
                            .residual = device_residual.data(),
                            .weight = device_weight.data(),
                            .m = c.m,
                            .n = c.n,
                            .eps = 1e-3F};
    if (c.bf16_out) params.y = y.data();
    if (c.fp8_out) params.y_quantized = y_quantized.view;
    if (c.rows == Rows::kSome) {
      params.rows = device_rows.data();
      params.residual_out = residual_out.data();
    }
    cuda::Launch how = launch();
    how.num_sms = c.num_sms;
    add_rms_norm(params, how);

    const auto before = residual;
    for (size_t i = 0; i < input.added.size(); ++i) residual[i] += input.added[i];
    std::vector<double> expected(c.m * c.n, 0.0);
    const auto sums_out = residual_out.download();
    for (int64_t i = 0; i < c.m; ++i) {
      const int64_t row = c.rows == Rows::kAll ? i : rows[i];
      double squares = 0.0;
      for (int64_t k = 0; k < c.n && row >= 0; ++k) {
        squares +=
            static_cast<double>(residual[row * c.n + k]) * static_cast<double>(residual[row * c.n + k]);
      }
      const double factor =
          1.0 / std::sqrt(squares / static_cast<double>(c.n) + static_cast<double>(params.eps));
      for (int64_t k = 0; k < c.n; ++k) {
        const float sum = row >= 0 ? residual[row * c.n + k] : 0.0F;
        expected[i * c.n + k] = static_cast<double>(sum) * factor * static_cast<double>(weight[k]);
        if (c.rows == Rows::kSome) {
          ASSERT_EQ(sums_out[i * c.n + k], sum) << "residual_out " << i << ", " << k;
        }
      }
    }
    ASSERT_TRUE(std::isnan(sums_out[c.m * c.n]));
    const auto after = device_residual.download();
    const auto& want = c.rows == Rows::kAll ? residual : before;
    for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(after[i], want[i]) << "residual " << i;
    if (c.bf16_out) expect_rounded_rows(y.download(), expected, c.n);
    if (c.fp8_out) expect_quantized(y_quantized, expected, c.n);
  }

  static void expect_rounded_rows(const std::vector<bf16>& out, const std::vector<double>& expected,
                                  int64_t n) {
    expect_rounded(std::vector<bf16>(out.begin(), out.end()), expected);
    ASSERT_EQ(out.size(), expected.size() + static_cast<size_t>(n));
  }

  static std::string fmt_case(const NormCase& c, uint64_t seed) {
    return "seed " + std::to_string(seed) + " m " + std::to_string(c.m) + " n " + std::to_string(c.n) +
           " input " + std::to_string(static_cast<int>(c.input)) + " top_k " + std::to_string(c.top_k) +
           " rows " + std::to_string(static_cast<int>(c.rows));
  }
};

TEST_P(AddRmsNorm, MatchesDoublePrecision) {
  for (const NormCase& c : {
           NormCase{1, 2048, Input::kDense, true, false},
           NormCase{1, 7168, Input::kDense, true, true},
           NormCase{3, 7168, Input::kNone, false, true},
           NormCase{16, 2048, Input::kNone, true, false},
           NormCase{5, 8192, Input::kDense, true, true, Rows::kAll, 0, true},  // the widest tuned row
           NormCase{5, 8064, Input::kDense, true, true},
           NormCase{2, 9000, Input::kDense, true, true},  // wider than the tuned kernel
           NormCase{4, 200, Input::kDense, true, true},   // a ragged group
           NormCase{4, 1416, Input::kDense, false, true, Rows::kAll, 0, true},
           NormCase{3, 77, Input::kDense, true, true},  // no 16-byte access
           NormCase{7, 8, Input::kDense, true, true},
           NormCase{25, 7168, Input::kDense, true, false},  // clusters of 4, of 2, blocks
           NormCase{61, 7168, Input::kDense, false, true},
           NormCase{101, 7168, Input::kDense, true, true},
           NormCase{300, 2048, Input::kDense, true, true},  // the large-m kernels
           NormCase{300, 4096, Input::kDense, true, true},
           NormCase{270, 7168, Input::kNone, true, false},
           NormCase{266, 8192, Input::kDense, true, true},
       }) {
    check(c);
    if (HasFatalFailure()) return;
  }
}

TEST_P(AddRmsNorm, CombinesExperts) {
  for (const NormCase& c : {
           NormCase{1, 2048, Input::kExperts, true, false, Rows::kAll, 8},
           NormCase{1, 7168, Input::kExperts, true, true, Rows::kAll, 9},
           NormCase{3, 8192, Input::kExperts, true, true, Rows::kAll, 7},
           NormCase{5, 1000, Input::kExperts, true, true, Rows::kAll, 32},
           NormCase{5, 264, Input::kExperts, true, true, Rows::kAll, 1},
           NormCase{2, 264, Input::kExperts, true, true, Rows::kAll, 40},  // more than a warp's lanes
           NormCase{2, 100, Input::kExperts, true, true, Rows::kAll, 3},
           NormCase{25, 5120, Input::kExperts, true, true, Rows::kAll, 8},
           NormCase{61, 7168, Input::kExperts, true, true, Rows::kAll, 9},
           NormCase{101, 7168, Input::kExperts, true, true, Rows::kAll, 9},
           NormCase{280, 2048, Input::kExperts, true, false, Rows::kAll, 8},
           NormCase{280, 7168, Input::kExperts, false, true, Rows::kAll, 9},
           NormCase{270, 8000, Input::kExperts, true, true, Rows::kAll, 17},
       }) {
    check(c);
    if (HasFatalFailure()) return;
  }
}

TEST_P(AddRmsNorm, AddsThePartsOfRanksInTheirOrder) {
  for (const NormCase& c : {
           NormCase{1, 2048, Input::kParts, true, false, Rows::kAll, 2},
           NormCase{1, 7168, Input::kParts, true, true, Rows::kAll, 8},
           NormCase{3, 8192, Input::kParts, true, true, Rows::kAll, 4},
           NormCase{5, 264, Input::kParts, true, true, Rows::kAll, 1},
           NormCase{2, 100, Input::kParts, true, true, Rows::kAll, 3},  // no 16-byte access
           NormCase{3, 77, Input::kParts, true, true, Rows::kAll, 2},   // words of two rows
           NormCase{25, 5120, Input::kParts, true, true, Rows::kAll, 8},
           NormCase{61, 7168, Input::kParts, true, true, Rows::kAll, 2},
           NormCase{280, 2048, Input::kParts, true, false, Rows::kAll, 8},
           NormCase{280, 7168, Input::kParts, false, true, Rows::kAll, 7},
           NormCase{270, 8000, Input::kParts, true, true, Rows::kAll, 5},
           NormCase{9, 7168, Input::kParts, true, true, Rows::kSome, 2},
           NormCase{270, 1024, Input::kParts, true, false, Rows::kSome, 8},
       }) {
    check(c);
    if (HasFatalFailure()) return;
  }
}

// A rank has only a part of the experts' sum: pairs of other ranks' experts have no row.
TEST_P(AddRmsNorm, CombineRowsSkipsPairsWithoutARow) {
  for (const auto& [m, n, top_k] :
       {std::tuple{1, 2048, 8}, {3, 7168, 6}, {70, 264, 32}, {2, 100, 3}, {2, 264, 40}, {300, 2048, 6}}) {
    for (const bool has_shared : {false, true}) {
      const uint64_t seed = fresh_seed() + static_cast<uint64_t>(m);
      SCOPED_TRACE("seed " + std::to_string(seed) + " m " + std::to_string(m) + " n " + std::to_string(n));
      const auto values = random_bf16(int64_t{m} * top_k * n, seed);
      const auto factors = random_floats(m * top_k, seed + 1, 0.3F);
      const auto shared = random_bf16(int64_t{m} * n, seed + 2);
      std::vector<int32_t> rows(m * top_k);
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = i % 3 == 1 ? -1 : static_cast<int32_t>(i);
      const DeviceArray<bf16> device_values(values);
      const DeviceArray<float> device_factors(factors);
      const DeviceArray<int32_t> device_rows(rows);
      const DeviceArray<bf16> device_shared(shared);
      const DeviceArray<bf16> y(m * n);
      cuda::combine_rows({.experts = {.expert_rows = device_values.data(),
                                      .row_of = device_rows.data(),
                                      .weights = device_factors.data(),
                                      .top_k = top_k},
                          .added = has_shared ? device_shared.data() : nullptr,
                          .y = y.data(),
                          .m = m,
                          .n = n},
                         launch());
      const auto out = y.download();
      for (int64_t i = 0; i < int64_t{m} * n; ++i) {
        float sum = 0.0F;
        for (int j = 0; j < top_k; ++j) {
          const int64_t pair = i / n * top_k + j;
          if (rows[pair] >= 0)
            sum = std::fma(factors[pair], to_float(values[int64_t{rows[pair]} * n + i % n]), sum);
        }
        if (has_shared) sum += to_float(shared[i]);
        ASSERT_EQ(to_float(out[i]), to_float(to_bf16(sum))) << "element " << i;
      }
    }
  }
}

TEST_P(AddRmsNorm, PicksRows) {
  for (const NormCase& c : {
           NormCase{1, 2048, Input::kDense, true, false, Rows::kSome},
           NormCase{9, 2048, Input::kExperts, true, false, Rows::kSome, 8},
           NormCase{9, 7168, Input::kExperts, true, true, Rows::kSome, 9},
           NormCase{6, 7168, Input::kNone, true, true, Rows::kSome},
           NormCase{6, 123, Input::kDense, true, true, Rows::kSome},
           NormCase{270, 7168, Input::kDense, true, false, Rows::kSome},
           NormCase{270, 1024, Input::kExperts, true, false, Rows::kSome, 4},
       }) {
    check(c);
    if (HasFatalFailure()) return;
  }
}

TEST_P(AddRmsNorm, SmallRowsForSanitizersMatchDoublePrecision) {
  for (const int num_sms : {132, 2, 1}) {  // clusters, blocks for few rows, blocks for many
    for (const int64_t n : {264, 3000, 5000, 8192}) {
      check({3, n, Input::kDense, true, true, Rows::kAll, 0, false, num_sms});
      check({3, n, Input::kExperts, true, true, Rows::kAll, 9, false, num_sms});
      check({3, n, Input::kExperts, true, true, Rows::kSome, 4, true, num_sms});
      check({3, n, Input::kParts, true, true, Rows::kAll, 3, false, num_sms});
    }
  }
}

TEST_P(AddRmsNorm, RowsOfZerosHaveScaleOne) {
  const int64_t n = 512;
  const DeviceArray<float> residual(std::vector<float>(2 * n, 0.0F));
  const DeviceArray<float> weight(std::vector<float>(n, 1.0F));
  for (const cuda::RowFormat format : kRowFormats) {
    DeviceFp8 y(2, n, 0, 0, true, format);
    add_rms_norm(
        {.residual = residual.data(), .weight = weight.data(), .y_quantized = y.view, .m = 2, .n = n},
        launch());
    expect_quantized(y, std::vector<double>(2 * n, 0.0), n);
  }
}

// The kernels for few and for many rows give a row the same codes. One case is the longest row that the
// kernels for many rows support with one scale per row.
TEST_P(AddRmsNorm, CodesDoNotDependOnTheBatch) {
  for (const cuda::RowFormat format : {cuda::RowFormat::kE4m3Tokens, cuda::RowFormat::kInt8Tokens}) {
    for (const int64_t n : {2048, 7168}) {
      const int64_t m = 300;
      const HostInput input(Input::kExperts, m, n, 9, fresh_seed());
      const auto residual = random_floats(m * n, fresh_seed() + 1);
      const DeviceArray<float> weight(random_floats(n, fresh_seed() + 2));
      std::vector<fp8_e4m3> codes[2];
      std::vector<float> scales[2];
      for (const int64_t count : {int64_t{3}, m}) {
        DeviceArray<float> sum(residual);
        DeviceFp8 y(m, n, 0, 0, false, format);
        add_rms_norm({.input = input.view(),
                      .residual = sum.data(),
                      .weight = weight.data(),
                      .y_quantized = y.view,
                      .m = count,
                      .n = n},
                     launch());
        codes[count == m ? 1 : 0] = y.codes.download();
        scales[count == m ? 1 : 0] = y.scales.download();
      }
      ASSERT_EQ(std::memcmp(codes[0].data(), codes[1].data(), 3 * n), 0) << "width " << n;
      ASSERT_EQ(std::memcmp(scales[0].data(), scales[1].data(), 3 * sizeof(float)), 0) << "width " << n;
    }
  }
}

// The kernels for few and for many rows give a row the same bits.
TEST_P(AddRmsNorm, ARowDoesNotDependOnTheBatch) {
  for (const int64_t n : {2048, 7168}) {
    for (const Input kind : {Input::kDense, Input::kExperts, Input::kParts}) {
      const int64_t m = 400;
      const HostInput input(kind, m, n, kind == Input::kParts ? 8 : 9, fresh_seed());
      const auto residual = random_floats(m * n, fresh_seed() + 1);
      const DeviceArray<float> weight(random_floats(n, fresh_seed() + 2));
      std::vector<bf16> rows[2];
      for (const int64_t count : {int64_t{3}, m}) {
        DeviceArray<float> sum(residual);
        DeviceArray<bf16> y(m * n);
        add_rms_norm({.input = input.view(),
                      .residual = sum.data(),
                      .weight = weight.data(),
                      .y = y.data(),
                      .m = count,
                      .n = n},
                     launch());
        rows[count == m ? 1 : 0] = y.download();
      }
      ASSERT_EQ(std::memcmp(rows[0].data(), rows[1].data(), 3 * n * sizeof(bf16)), 0) << "width " << n;
    }
  }
}

TEST_P(AddRmsNorm, AddResidualIsExact) {
  struct Case {
    int64_t m, n;
    Input input;
    int top_k;
  };
  for (const Case& c :
       {Case{1, 2048, Input::kDense, 0}, Case{70, 7168, Input::kDense, 0}, Case{3, 77, Input::kDense, 0},
        Case{1, 7168, Input::kExperts, 9}, Case{33, 2056, Input::kExperts, 8},
        Case{5, 30, Input::kExperts, 2}, Case{4, 512, Input::kExperts, 33}, Case{2, 512, Input::kNone, 0}}) {
    SCOPED_TRACE(c.n);
    const HostInput input(c.input, c.m, c.n, c.top_k, fresh_seed());
    auto residual = random_floats(c.m * c.n, fresh_seed() + 1);
    const DeviceArray<float> device(residual);
    add_residual(input.view(), device.data(), c.m, c.n, launch());
    for (size_t i = 0; i < input.added.size(); ++i) residual[i] += input.added[i];
    const auto out = device.download();
    for (size_t i = 0; i < residual.size(); ++i) ASSERT_EQ(out[i], residual[i]) << "element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, AddRmsNorm, ::testing::Values(false, true), kernel_name);

}  // namespace
}  // namespace hadal::testing
