// Compares the plain and the tuned kernels of absorb_query and expand_value with double precision, over token
// counts around every tile border.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "kernels/cuda/gemm/variants.h"
#include "tests/cuda/gemm/linear_case.h"
#include "tests/cuda/test_launch.h"

namespace hadal::testing {
namespace {

// This is the tolerance of rows in 16 bits, which covers rounding alone.
template <typename T>
constexpr double kTolerance = std::is_same_v<T, f16> ? 5e-4 : 4e-3;

// Holds dense weights [rows, k] of T (bf16 or f16) or FP8, and their values on the host.
template <typename T>
struct Weights {
  std::vector<double> values;
  DeviceArray<T> data;
  DeviceArray<fp8_e4m3> codes;
  DeviceArray<float> scales;
  MatrixWeight w;

  Weights(bool fp8, int64_t rows, int64_t k, uint64_t seed) {
    values.resize(rows * k);
    w.n = rows;
    w.k = k;
    w.row_stride = k;
    if (!fp8) {
      const std::vector<T> host = random_16_bit<T>(rows * k, seed, 0.05F);
      for (size_t i = 0; i < host.size(); ++i) values[i] = to_float(host[i]);
      data = DeviceArray<T>(host);
      w.data = data.data();
      w.type = std::is_same_v<T, f16> ? WeightType::kF16 : WeightType::kBF16;
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

// Holds the options of absorb_query besides the product.
struct Absorb {
  bool rope = false;
  bool rows = false;     // through a map of rows, some of them empty
  bool ordered = false;  // through a map that keeps their order except for two rows, with the last row empty
  bool settled = false;
  int64_t every = 1;   // one of this many (token, head) pairs has its products checked
  bool tiled = false;  // the kernel for many tokens, whatever the op would choose
};

// Returns a map from m rows to another order of them, with every fifth row empty; or no map.
std::vector<int32_t> row_map(bool wanted, int64_t m, uint64_t seed) {
  std::vector<int32_t> rows(m);
  std::iota(rows.begin(), rows.end(), 0);
  if (!wanted) return rows;
  std::mt19937_64 random(seed);
  std::shuffle(rows.begin(), rows.end(), random);
  for (int64_t i = 2; i < m; i += 5) rows[i] = -1;
  return rows;
}

// Rotates a pair; each product is rounded before the sum.
template <typename T>
std::pair<T, T> turned(T first, T second, float cosine, float sine) {
  const float a = to_float(first);
  const float b = to_float(second);
  return {rounded_to<T>(a * cosine - b * sine), rounded_to<T>(b * cosine + a * sine)};
}

template <typename T>
std::vector<double> doubles(const std::vector<T>& values) {
  std::vector<double> wide(values.size());
  for (size_t i = 0; i < wide.size(); ++i) wide[i] = to_float(values[i]);
  return wide;
}

template <typename T>
void check_absorb_of(bool fp8, int64_t m, int heads, bool reference, uint64_t seed, const Absorb& what) {
  const Weights<T> weights(fp8, heads * 512, 128, seed);
  // Queries have the layout that q_b writes: 192 per head and a few more per row, which are NaN where no
  // kernel may read.
  const int64_t head_stride = 192;
  const int64_t row_stride = heads * head_stride + 64;
  const int64_t width = what.rope ? 192 : 128;
  std::vector<T> q(m * row_stride, T{0xffff});
  const std::vector<T> values = random_16_bit<T>(m * heads * width, seed + 2);
  for (int64_t i = 0; i < m * heads; ++i) {
    for (int64_t j = 0; j < width; ++j) {
      q[i / heads * row_stride + i % heads * head_stride + j] = values[i * width + j];
    }
  }
  std::vector<int32_t> map = row_map(what.rows, m, seed + 3);
  if (what.ordered) {
    if (m > 141) std::swap(map[140], map[141]);
    map[m - 1] = -1;
  }
  constexpr int64_t kPositions = 300;
  std::mt19937_64 random(seed + 4);
  std::vector<int32_t> positions(m);
  for (int32_t& position : positions) position = static_cast<int32_t>(random() % kPositions);
  std::vector<float> table(kPositions * 64);
  for (int64_t i = 0; i < kPositions * 32; ++i) {
    const double angle = std::uniform_real_distribution<double>(-3.0, 3.0)(random);
    table[i / 32 * 64 + i % 32] = static_cast<float>(std::cos(angle));
    table[i / 32 * 64 + 32 + i % 32] = static_cast<float>(std::sin(angle));
  }
  const DeviceArray<T> device_q(q);
  const DeviceArray<int32_t> device_map(map);
  const DeviceArray<int32_t> device_positions(positions);
  const DeviceArray<float> device_table(table);
  DeviceArray<T> y(m * heads * 576);
  const cuda::AbsorbQueryParams params{.q = device_q.data(),
                                       .q_row_stride = row_stride,
                                       .q_head_stride = head_stride,
                                       .w_uk = weights.w,
                                       .y = y.data(),
                                       .m = m,
                                       .num_heads = heads,
                                       .positions = what.rope ? device_positions.data() : nullptr,
                                       .cos_sin = what.rope ? device_table.data() : nullptr,
                                       .rows = what.rows || what.ordered ? device_map.data() : nullptr,
                                       .settled = what.settled};
  if (what.tiled) {
    cuda::absorb_query_tiled(params, test_launch(false));
  } else {
    cuda::absorb_query(params, test_launch(reference));
  }
  const std::vector<T> rows = y.download();
  const std::vector<double> wide = doubles(values);
  std::vector<double> out;
  std::vector<double> want;
  for (int64_t i = 0; i < m * heads; ++i) {
    const int64_t head = i % heads;
    const int64_t source = map[i / heads];
    const T* from = values.data() + (std::max<int64_t>(source, 0) * heads + head) * width;
    const double* wide_from = wide.data() + (from - values.data());
    for (int64_t j = 0; j < 512 && i % what.every == 0; ++j) {
      double sum = 0.0;
      for (int64_t k = 0; k < 128 && source >= 0; ++k)
        sum += wide_from[k] * weights.values[(head * 512 + j) * 128 + k];
      want.push_back(sum);
      out.push_back(to_float(rows[i * 576 + j]));
      ASSERT_TRUE(source >= 0 || rows[i * 576 + j].bits == 0) << "row " << i / heads << " is empty";
    }
    for (int64_t pair = 0; pair < 32; ++pair) {
      const T* got = rows.data() + i * 576 + 512 + 2 * pair;
      std::pair<T, T> expected(T{0xffff}, T{0xffff});  // as it was
      if (what.rope && source < 0) expected = {T{0}, T{0}};
      if (what.rope && source >= 0) {
        const float* angles = table.data() + positions[source] * 64;
        expected = turned(from[128 + 2 * pair], from[129 + 2 * pair], angles[pair], angles[32 + pair]);
      }
      ASSERT_EQ(got[0].bits, expected.first.bits)
          << "row " << i / heads << " head " << head << " pair " << pair;
      ASSERT_EQ(got[1].bits, expected.second.bits)
          << "row " << i / heads << " head " << head << " pair " << pair;
    }
  }
  EXPECT_LE(relative_difference(out, want), kTolerance<T>)
      << "fp8 " << fp8 << " m " << m << " heads " << heads << ": "
      << first_difference(out, want, 512, 10 * kTolerance<T>);
}

// Checks absorb_query with bf16 or FP8 weights; float16 weights are tested together with bf16.
void check_absorb(bool fp8, int64_t m, int heads, bool reference, uint64_t seed, const Absorb& what = {}) {
  check_absorb_of<bf16>(fp8, m, heads, reference, seed, what);
  if (!fp8) check_absorb_of<f16>(fp8, m, heads, reference, seed, what);
}

enum class Output { k16Bit, kFp8, kFp8PowerOfTwo };

template <typename T>
void check_expand_of(bool fp8, int64_t m, int heads, Output output, bool reference, uint64_t seed,
                     bool mapped, bool tiled) {
  const Weights<T> weights(fp8, heads * 256, 512, seed);
  const std::vector<T> o = random_16_bit<T>(m * heads * 512, seed + 2);
  const DeviceArray<T> device_o(o);
  const int64_t width = heads * 128;
  const std::vector<int32_t> map = row_map(mapped, m, seed + 3);
  const DeviceArray<int32_t> device_map(map);
  cuda::ExpandValueParams p{.o = device_o.data(),
                            .kv_b = weights.w,
                            .m = m,
                            .num_heads = heads,
                            .rows = mapped ? device_map.data() : nullptr};
  DeviceArray<T> y(m * (width + 8));
  DeviceArray<fp8_e4m3> codes(m * (width + 128));
  const int64_t scale_stride = cuda::round_up(m, 4) + 4;
  DeviceArray<float> scales(heads * scale_stride);
  if (output == Output::k16Bit) {
    p.y = y.data();
    p.y_stride = width + 8;
  } else {
    p.y_quantized = {.codes = codes.data(),
                     .scales = scales.data(),
                     .stride = width + 128,
                     .scale_stride = scale_stride,
                     .power_of_two = output == Output::kFp8PowerOfTwo};
  }
  if (tiled) {
    cuda::expand_value_tiled(p, test_launch(false));
  } else {
    cuda::expand_value(p, test_launch(reference));
  }
  std::vector<double> want(m * width);
  std::vector<double> out(m * width);
  const std::vector<T> rows = y.download();
  const std::vector<fp8_e4m3> out_codes = codes.download();
  const std::vector<float> out_scales = scales.download();
  const std::vector<double> wide_o = doubles(o);
  std::vector<bool> written(m, false);
  for (int64_t source = 0; source < m; ++source) {
    const int64_t i = map[source];
    if (i < 0) continue;
    written[i] = true;
    for (int64_t h = 0; h < heads; ++h) {
      double amax = 0.0;
      for (int64_t j = 0; j < 128; ++j) {
        double sum = 0.0;
        for (int64_t k = 0; k < 512; ++k) {
          sum += wide_o[(source * heads + h) * 512 + k] * weights.values[(h * 256 + 128 + j) * 512 + k];
        }
        want[i * width + h * 128 + j] = sum;
        amax = std::max(amax, std::abs(sum));
        if (output == Output::k16Bit) {
          out[i * width + h * 128 + j] = to_float(rows[i * (width + 8) + h * 128 + j]);
        } else {
          out[i * width + h * 128 + j] =
              static_cast<double>(to_float(out_codes[i * (width + 128) + h * 128 + j])) *
              out_scales[h * scale_stride + i];
        }
      }
      if (output == Output::k16Bit) continue;
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
  for (int64_t i = 0; i < m; ++i) {
    if (written[i]) continue;
    for (int64_t j = 0; j < width; ++j) {
      if (output == Output::k16Bit) {
        ASSERT_EQ(rows[i * (width + 8) + j].bits, 0xffff) << "row " << i << " has no source";
      } else {
        ASSERT_EQ(out_codes[i * (width + 128) + j].bits, 0xff) << "row " << i << " has no source";
      }
    }
  }
  const double tolerance = output == Output::k16Bit ? kTolerance<T> : 3.2e-2;  // e4m3 keeps three bits
  EXPECT_LE(relative_difference(out, want), tolerance)
      << "fp8 " << fp8 << " m " << m << " heads " << heads << ": "
      << first_difference(out, want, width, 10 * tolerance);
}

void check_expand(bool fp8, int64_t m, int heads, Output output, bool reference, uint64_t seed,
                  bool mapped = false, bool tiled = false) {
  check_expand_of<bf16>(fp8, m, heads, output, reference, seed, mapped, tiled);
  if (!fp8 && output == Output::k16Bit)
    check_expand_of<f16>(fp8, m, heads, output, reference, seed, mapped, tiled);
}

TEST(AbsorbQuery, PlainMatchesDoublePrecision) {
  for (const bool fp8 : {false, true}) check_absorb(fp8, 3, 2, true, 11);
}
TEST(AbsorbQuery, TokenCountsAndHeadsMatchDoublePrecision) {
  uint64_t seed = 100;
  for (const bool fp8 : {false, true}) {
    for (const int64_t m : {1, 2, 8, 9, 16, 17, 40}) check_absorb(fp8, m, 4, false, seed += 10);
    check_absorb(fp8, 3, 16, false, seed += 10);
    check_absorb(fp8, 5, 1, false, seed += 10);
    check_absorb(fp8, 150, 8, false, seed += 10);
    check_absorb(fp8, 20, 128, false, seed += 10);
  }
}
TEST(AbsorbQuery, WithRopeMatchesDoublePrecision) {
  uint64_t seed = 300;
  for (const bool fp8 : {false, true}) {
    for (const bool settled : {false, true}) {
      const Absorb rope{.rope = true, .settled = settled};
      check_absorb(fp8, 3, 2, true, seed += 10, rope);
      for (const int64_t m : {1, 9, 17, 40}) check_absorb(fp8, m, 4, false, seed += 10, rope);
      // A block has more tokens than threads.
      check_absorb(fp8, 200, 128, false, seed += 10, {.rope = true, .settled = settled, .every = 101});
    }
  }
}
TEST(AbsorbQuery, ThroughAMapOfRowsMatchesDoublePrecision) {
  uint64_t seed = 400;
  for (const bool fp8 : {false, true}) {
    for (const bool rope : {false, true}) {
      const Absorb what{.rope = rope, .rows = true};
      check_absorb(fp8, 8, 2, true, seed += 10, what);
      for (const int64_t m : {3, 16, 37, 150}) check_absorb(fp8, m, 8, false, seed += 10, what);
    }
  }
}
TEST(AbsorbQuery, TiledMatchesDoublePrecision) {
  uint64_t seed = 600;
  for (const bool fp8 : {false, true}) {
    for (const int64_t m : {1, 63, 64, 65, 130}) {
      check_absorb(fp8, m, 2, false, seed += 10, {.tiled = true});
      check_absorb(fp8, m, 3, false, seed += 10, {.rope = true, .tiled = true});
      check_absorb(fp8, m, 2, false, seed += 10, {.rope = true, .rows = true, .tiled = true});
    }
    check_absorb(fp8, 260, 3, false, seed += 10,
                 {.rope = true, .ordered = true, .settled = true, .tiled = true});
    // A run has several tiles, so that both stages of the ring are used more than once.
    check_absorb(fp8, 530, 128, false, seed += 10,
                 {.rope = true, .rows = true, .every = 1009, .tiled = true});
  }
}
TEST(ExpandValue, PlainMatchesDoublePrecision) {
  for (const bool fp8 : {false, true}) {
    for (const Output output : {Output::k16Bit, Output::kFp8, Output::kFp8PowerOfTwo}) {
      check_expand(fp8, 3, 2, output, true, 21);
    }
  }
}
TEST(ExpandValue, TokenCountsAndHeadsMatchDoublePrecision) {
  uint64_t seed = 500;
  for (const bool fp8 : {false, true}) {
    for (const Output output : {Output::k16Bit, Output::kFp8, Output::kFp8PowerOfTwo}) {
      for (const int64_t m : {1, 7, 16, 17, 40}) check_expand(fp8, m, 4, output, false, seed += 10);
      check_expand(fp8, 2, 16, output, false, seed += 10);
      check_expand(fp8, 11, 100, output, false, seed += 10);
      check_expand(fp8, 18, 100, output, false, seed += 10);
    }
    check_expand(fp8, 70, 50, Output::kFp8, false, seed += 10);
  }
}
TEST(ExpandValue, TiledMatchesDoublePrecision) {
  uint64_t seed = 1300;
  for (const bool fp8 : {false, true}) {
    for (const Output output : {Output::k16Bit, Output::kFp8, Output::kFp8PowerOfTwo}) {
      for (const int64_t m : {1, 64, 127, 130})
        check_expand(fp8, m, 2, output, false, seed += 10, false, true);
      check_expand(fp8, 70, 3, output, false, seed += 10, true, true);
      check_expand(fp8, 260, 45, output, false, seed += 10, true, true);  // several tiles per run
      check_expand(fp8, 70, 67, output, false, seed += 10, true, true);   // a tile of 128 tokens
    }
  }
}
TEST(ExpandValue, ThroughAMapOfRowsMatchesDoublePrecision) {
  uint64_t seed = 900;
  for (const bool fp8 : {false, true}) {
    for (const Output output : {Output::k16Bit, Output::kFp8}) {
      check_expand(fp8, 8, 2, output, true, seed += 10, true);
      for (const int64_t m : {3, 17, 40}) check_expand(fp8, m, 4, output, false, seed += 10, true);
      check_expand(fp8, 70, 50, output, false, seed += 10, true);
    }
  }
}

}  // namespace
}  // namespace hadal::testing
