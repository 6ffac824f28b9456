// Compares the row-wise ops on rows of float16 with loops in double. Residual sums in float32 are exact.
#include "tests/cuda/elementwise/fixture.h"

namespace hadal::testing {
namespace {

class Float16Rows : public BothKernels {};

std::vector<f16> random_f16(size_t count, uint64_t seed, float sigma = 1.0F) {
  return random_16_bit<f16>(count, seed, sigma);
}

// Expects the float16 nearest to each expected value, allowing for the error of float32 before the rounding.
// After them `out` must still be poisoned.
void expect_rounded_f16(const std::vector<f16>& out, const std::vector<double>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const double got = static_cast<double>(to_float(out[i]));
    // Half a step is at most 2^-11 of the value, or 2^-25 if the value is subnormal.
    ASSERT_LE(std::fabs(got - expected[i]), std::fabs(expected[i]) * (0x1p-11 + 5e-6) + 0x1p-25)
        << "element " << i << ": " << got << ", expected " << expected[i];
  }
  for (size_t i = expected.size(); i < out.size(); ++i)
    ASSERT_EQ(out[i].bits, 0xffff) << "wrote past the end";
}

TEST_P(Float16Rows, EmbeddingMatchesTheTable) {
  for (const int64_t hidden : {int64_t{2048}, int64_t{24}, int64_t{75}}) {
    const int64_t vocab = 50;
    const auto table = random_f16(vocab * hidden, fresh_seed());
    const std::vector<int32_t> ids = {0, 49, 7, -1, 50, 7, 2'000'000'000};
    const auto m = static_cast<int64_t>(ids.size());
    const DeviceArray<f16> device_table(table);
    const DeviceArray<int32_t> device_ids(ids);
    const DeviceArray<float> y(m * hidden);
    embedding({.table = device_table.data(),
               .ids = device_ids.data(),
               .y = y.data(),
               .m = m,
               .hidden = hidden,
               .vocab = vocab,
               .f16 = true},
              launch());
    const auto out = y.download();
    for (int64_t i = 0; i < m * hidden; ++i) {
      const int64_t id = ids[i / hidden];
      ASSERT_EQ(out[i], id >= 0 && id < vocab ? to_float(table[id * hidden + i % hidden]) : 0.0F) << i;
    }
  }
}

TEST_P(Float16Rows, SiluMulMatchesDoublePrecision) {
  for (const int64_t n : {int64_t{1408}, int64_t{10944}, int64_t{8}, int64_t{50}}) {
    for (const int64_t m : {1, 9}) {
      SCOPED_TRACE(std::to_string(m) + " x " + std::to_string(n) + " seed " + std::to_string(fresh_seed()));
      const auto x = random_f16(m * 2 * n, fresh_seed() + n, 4.0F);
      std::vector<double> expected(m * n);
      for (int64_t i = 0; i < m * n; ++i) {
        const auto gate = static_cast<double>(to_float(x[i / n * 2 * n + i % n]));
        expected[i] =
            gate / (1.0 + std::exp(-gate)) * static_cast<double>(to_float(x[i / n * 2 * n + n + i % n]));
      }
      const DeviceArray<f16> device(x);
      const DeviceArray<f16> y((m + 1) * n);
      silu_mul({.x = device.data(), .m = m, .n = n, .y = y.data(), .f16 = true}, launch());
      expect_rounded_f16(y.download(), expected);
    }
  }
}

TEST_P(Float16Rows, QRopeMatchesDoublePrecision) {
  const int64_t m = 11;
  const int heads = 20;
  const int64_t q_row = heads * 192 + 8;
  const auto q = random_f16(m * q_row, fresh_seed());
  const auto table = random_floats(100 * 64, fresh_seed() + 1);
  std::vector<int32_t> positions(m);
  for (int64_t i = 0; i < m; ++i) positions[i] = static_cast<int32_t>(i * 9 % 100);
  const DeviceArray<f16> device_q(q);
  const DeviceArray<float> device_table(table);
  const DeviceArray<int32_t> device_positions(positions);
  const DeviceArray<f16> y(m * heads * 576);
  q_rope({.q = device_q.data() + 128,
          .q_row_stride = q_row,
          .q_head_stride = 192,
          .y = y.data() + 512,
          .y_row_stride = heads * 576,
          .y_head_stride = 576,
          .positions = device_positions.data(),
          .cos_sin = device_table.data(),
          .m = m,
          .num_heads = heads,
          .f16 = true},
         launch());
  const auto got = y.download();
  for (int64_t i = 0; i < m * heads; ++i) {
    const float* angles = &table[positions[i / heads] * 64];
    for (int column = 0; column < 576; ++column) {
      uint16_t want = 0xffff;
      if (column >= 512) {
        const int pair = (column - 512) / 2;
        const f16* x = &q[i / heads * q_row + i % heads * 192 + 128 + 2 * pair];
        const float a = to_float(x[0]);
        const float b = to_float(x[1]);
        want = to_f16(column % 2 == 0 ? a * angles[pair] - b * angles[32 + pair]
                                      : b * angles[pair] + a * angles[32 + pair])
                   .bits;
      }
      ASSERT_EQ(got[i * 576 + column].bits, want) << "head " << i << ", column " << column;
    }
  }
}

// Covers dense rows and experts' rows, few rows and many, without and with the norm.
TEST_P(Float16Rows, NormsAndSumsMatchDoublePrecision) {
  for (const auto& [m, n] :
       {std::pair<int64_t, int64_t>{3, 2048}, {400, 2048}, {2, 5120}, {9, 7168}, {3, 77}}) {
    for (const int top_k : {0, 8}) {
      SCOPED_TRACE(std::to_string(m) + " x " + std::to_string(n) + " top_k " + std::to_string(top_k) +
                   " seed " + std::to_string(fresh_seed()));
      const int64_t factor_rows = std::max(top_k, 1);
      const int64_t stride = top_k > 0 ? n : n + 16;
      const auto values = random_f16(m * factor_rows * stride, fresh_seed());
      const auto factors = random_floats(m * factor_rows, fresh_seed() + 1, 0.3F);
      std::vector<int32_t> rows(m * factor_rows);
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
      std::shuffle(rows.begin(), rows.end(), std::mt19937_64(fresh_seed() + 2));
      auto residual = random_floats(m * n, fresh_seed() + 3, 2.0F, 0.25F);
      const auto weight = random_floats(n, fresh_seed() + 4, 0.2F, 1.0F);
      const DeviceArray<f16> device_values(values);
      const DeviceArray<float> device_factors(factors);
      const DeviceArray<int32_t> device_rows(rows);
      const DeviceArray<float> sums(residual);
      const DeviceArray<float> sums_alone(residual);
      const DeviceArray<float> device_weight(weight);
      const DeviceArray<f16> y((m + 1) * n);
      cuda::NormInput input;
      if (top_k == 0) {
        input = {.dense = device_values.data(), .x_stride = stride};
      } else {
        input = {.expert_rows = device_values.data(),
                 .row_of = device_rows.data(),
                 .weights = device_factors.data(),
                 .top_k = top_k};
      }
      add_rms_norm({.input = input,
                    .residual = sums.data(),
                    .weight = device_weight.data(),
                    .y = y.data(),
                    .m = m,
                    .n = n,
                    .eps = 1e-3F,
                    .f16 = true},
                   launch());
      add_residual(input, sums_alone.data(), m, n, launch(), true);
      for (int64_t i = 0; i < m * n; ++i) {
        float added = 0.0F;
        if (top_k == 0) added = to_float(values[i / n * stride + i % n]);
        for (int j = 0; j < top_k; ++j) {
          const int64_t pair = i / n * top_k + j;
          added = std::fma(factors[pair], to_float(values[rows[pair] * n + i % n]), added);
        }
        residual[i] += added;
      }
      const auto got = sums.download();
      const auto got_alone = sums_alone.download();
      std::vector<double> expected(m * n);
      for (int64_t row = 0; row < m; ++row) {
        double squares = 0.0;
        for (int64_t k = 0; k < n; ++k) squares += std::pow(static_cast<double>(residual[row * n + k]), 2);
        const double factor = 1.0 / std::sqrt(squares / static_cast<double>(n) + 1e-3);
        for (int64_t i = row * n; i < (row + 1) * n; ++i) {
          ASSERT_EQ(got[i], residual[i]) << "element " << i;
          ASSERT_EQ(got_alone[i], residual[i]) << "element " << i;
          expected[i] = static_cast<double>(residual[i]) * factor * static_cast<double>(weight[i - row * n]);
        }
      }
      expect_rounded_f16(y.download(), expected);
    }
  }
}

// Covers the cache's records with and without the norm of q.
TEST_P(Float16Rows, PrologueMatchesDoublePrecision) {
  for (const int64_t q_width : {int64_t{0}, int64_t{1536}}) {
    const int64_t m = 13;
    const int64_t stride = q_width + 576 + 8;
    const bool normed = q_width > 0;
    SCOPED_TRACE("q_width " + std::to_string(q_width) + " seed " + std::to_string(fresh_seed()));
    const auto x = random_f16(m * stride, fresh_seed(), 2.0F);
    const auto q_norm = random_floats(q_width + 1, fresh_seed() + 1, 0.2F, 1.0F);
    const auto kv_norm = random_floats(512, fresh_seed() + 2, 0.2F, 1.0F);
    const auto table = random_floats(500 * 64, fresh_seed() + 3);
    std::vector<int32_t> positions(m);
    std::vector<int64_t> slots(m);
    for (int64_t i = 0; i < m; ++i) {
      positions[i] = static_cast<int32_t>(i * 37 % 500);
      slots[i] = i % 5 == 4 ? -1 : (i * 29 + 3) % 64;
    }
    const KvLayout layout{KvFormat::kF16};
    const DeviceArray<f16> device_x(x);
    const DeviceArray<float> device_q_norm(q_norm);
    const DeviceArray<float> device_kv_norm(kv_norm);
    const DeviceArray<float> device_table(table);
    const DeviceArray<int32_t> device_positions(positions);
    const DeviceArray<int64_t> device_slots(slots);
    const DeviceArray<f16> pool(64 * 576);
    const DeviceArray<f16> q((m + 1) * std::max<int64_t>(q_width, 1));
    mla_prologue({.x = device_x.data(),
                  .x_stride = stride,
                  .m = m,
                  .q_width = q_width,
                  .q_norm = normed ? device_q_norm.data() : nullptr,
                  .kv_norm = device_kv_norm.data(),
                  .q = normed ? q.data() : nullptr,
                  .positions = device_positions.data(),
                  .cos_sin = device_table.data(),
                  .slots = device_slots.data(),
                  .pool = reinterpret_cast<std::byte*>(pool.data()),
                  .layout = layout},
                 launch());
    const auto norm_of = [](const f16* row, const std::vector<float>& weight, int64_t n) {
      double squares = 0.0;
      for (int64_t k = 0; k < n; ++k) squares += std::pow(static_cast<double>(to_float(row[k])), 2);
      const double factor = 1.0 / std::sqrt(squares / static_cast<double>(n) + 1e-6);
      std::vector<double> y(n);
      for (int64_t k = 0; k < n; ++k)
        y[k] = static_cast<double>(to_float(row[k])) * factor * static_cast<double>(weight[k]);
      return y;
    };
    if (normed) {
      std::vector<double> expected;
      for (int64_t i = 0; i < m; ++i) {
        const auto row = norm_of(&x[i * stride], q_norm, q_width);
        expected.insert(expected.end(), row.begin(), row.end());
      }
      expect_rounded_f16(q.download(), expected);
    }
    const auto records = pool.download();
    std::vector<bool> written(64, false);
    for (int64_t i = 0; i < m; ++i) {
      if (slots[i] < 0) continue;
      written[slots[i]] = true;
      const f16* row = &x[i * stride + q_width];
      const f16* got = &records[slots[i] * 576];
      expect_rounded_f16(std::vector<f16>(got, got + 512), norm_of(row, kv_norm, 512));
      for (int pair = 0; pair < 32; ++pair) {
        const float a = to_float(row[512 + 2 * pair]);
        const float b = to_float(row[513 + 2 * pair]);
        const float cosine = table[positions[i] * 64 + pair];
        const float sine = table[positions[i] * 64 + 32 + pair];
        ASSERT_EQ(got[512 + 2 * pair].bits, to_f16(a * cosine - b * sine).bits) << "row " << i;
        ASSERT_EQ(got[513 + 2 * pair].bits, to_f16(b * cosine + a * sine).bits) << "row " << i;
      }
    }
    for (int64_t i = 0; i < 64 * 576; ++i) {
      if (!written[i / 576]) {
        ASSERT_EQ(records[i].bits, 0xffff) << "slot " << i / 576 << " was written";
      }
    }
  }
}

// Only bf16 rows are quantised.
TEST_P(Float16Rows, AreNeverQuantised) {
  const DeviceArray<f16> x(2 * 256);
  const DeviceFp8 codes(1, 128, 0, 0, false);
  EXPECT_THROW(silu_mul({.x = x.data(), .m = 1, .n = 128, .y_quantized = codes.view, .f16 = true}, launch()),
               Error);
}

INSTANTIATE_TEST_SUITE_P(Kernels, Float16Rows, ::testing::Values(false, true), kernel_name);

}  // namespace
}  // namespace hadal::testing
