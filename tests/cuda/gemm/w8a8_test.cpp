// Tests INT8 linears, and FP8 ones with channel scales. The plain kernel is compared with double precision,
// and the weight-streaming kernels are tested over their instantiations and schedules. The tiled kernel is
// tested tile by tile, exactly on small integers and with a k as long as any model's, and cuda::linear at the
// models' own sizes. Everything around the operands is poisoned (linear_case.h).
#include <gtest/gtest.h>

#include "kernels/cuda/gemm/tiled/linear.h"
#include "kernels/cuda/gemm/tiled/supports.h"
#include "kernels/cuda/gemm/variants.h"
#include "tests/cuda/gemm/linear_case.h"
#include "tests/cuda/test_launch.h"

namespace hadal::testing {
namespace {

// This is the tolerance of results rounded to bf16, and, in FP8, of sums that the tensor cores keep in 14
// bits over 128 or 512 of k.
constexpr double kTolerance = 2.5e-3;
// This is the tolerance of a single result: half a step of bf16, and the part of kTolerance that is due to
// the sum's error.
constexpr double kOneRounding = 0x1p-8 + 1e-3;

// Returns the tolerance. It is small for float32 results, because sums in int32 are exact, and those of
// blocks are added in float32.
double tolerance_of(WeightType type, bool f32) {
  if (!f32 || type == WeightType::kFp8Channel) return kTolerance;
  return type == WeightType::kInt8Channel ? 3e-7 : 3e-6;
}

void expect_close(const std::vector<float>& out, const std::vector<double>& want, double tolerance,
                  int64_t columns, const std::string& what) {
  EXPECT_LE(relative_difference(out, want), tolerance)
      << what << ": " << first_difference(out, want, columns, 10 * tolerance);
}

class W8a8 : public ::testing::TestWithParam<WeightType> {};

TEST_P(W8a8, PlainMatchesDoublePrecision) {
  uint64_t seed = std::random_device{}() / 2;
  for (const auto& [m, n, k] :
       {std::array<int64_t, 3>{1, 96, 64}, {3, 40, 200}, {5, 130, 448}, {2, 257, 576}}) {
    for (const bool f32 : {false, true}) {
      LinearCase c(GetParam(), m, n, k, seed += 3, f32);
      cuda::reference::linear(c.params(), test_launch(true));
      expect_close(c.result(), c.expected(), f32 ? 1e-5 : kTolerance, n,
                   c.name() + " seed " + std::to_string(seed));
    }
  }
}

TEST_P(W8a8, SkinnySchedulesMatchDoublePrecision) {
  uint64_t seed = std::random_device{}() / 2;
  for (const auto& [tokens, m] : {std::pair{8, 1}, {8, 7}, {16, 9}, {16, 16}, {32, 31}, {64, 40}, {64, 64}}) {
    const int64_t n = 128 + 41;
    LinearCase c(GetParam(), m, n, 1160, seed += 3, m % 2 == 1);
    ASSERT_TRUE(cuda::skinny::supports(cuda::linear_shape(c.params())));
    const std::vector<double> want = c.expected();
    for (const int splits : {1, 2, 3, 5, 8}) {
      for (const int stages : {2, 5}) {
        c.poison();
        cuda::skinny_linear(c.params(), test_launch(),
                            {.tokens = tokens, .groups = 1, .splits = splits, .stages = stages});
        expect_close(c.result(), want, tolerance_of(GetParam(), m % 2 == 1), n,
                     c.name() + " tokens " + std::to_string(tokens) + " splits " + std::to_string(splits) +
                         " stages " + std::to_string(stages) + " seed " + std::to_string(seed));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(W8a8, ThinMatchesDoublePrecision) {
  uint64_t seed = std::random_device{}() / 2;
  for (const int64_t m : {1, 2, 7, 8, 9, 16}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{96, 64},
                               {41, 448},
                               {200, 1160},
                               {16, 2048},
                               {33, 4616},
                               {2200, 2048}}) {
      LinearCase c(GetParam(), m, n, k, seed += 3, m % 2 == 0);
      ASSERT_TRUE(cuda::thin::supports(cuda::linear_shape(c.params())));
      cuda::thin_linear(c.params(), test_launch());
      expect_close(c.result(), c.expected(), tolerance_of(GetParam(), m % 2 == 0), n,
                   c.name() + " seed " + std::to_string(seed));
      if (HasFailure()) return;
    }
  }
}

TEST_P(W8a8, TilesAreExactOnSmallIntegers) {
  uint64_t seed = std::random_device{}() / 2;
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{128, 128, 128},
                                {256, 256, 256},
                                {256, 128, 1024},
                                {1, 8, 128},
                                {129, 136, 384},
                                {300, 576, 520},
                                {64, 1536, 256},
                                {513, 264, 1920},
                                {300, 2112, 256}}) {
    LinearCase c(GetParam(), m, n, k, seed += 3, false, true);
    std::vector<double> want = c.expected();
    for (double& value : want) value = static_cast<double>(to_float(to_bf16(static_cast<float>(value))));
    for (const cuda::LinearTile tile : cuda::kLinearTiles) {
      ASSERT_TRUE(cuda::tiled::supports(cuda::linear_shape(c.params())));
      c.poison();
      cuda::wgmma_linear_with(tile, c.params(), test_launch());
      EXPECT_EQ(relative_difference(c.result(), want), 0.0)
          << c.name() << " tile " << static_cast<int>(tile) << " seed " << seed << ": "
          << first_difference(c.result(), want, n, 1e-9);
    }
  }
}

TEST_P(W8a8, TilesMatchDoubleSumsOverLongRows) {
  for (const auto& [m, n, k] :
       {std::array<int64_t, 3>{300, 520, 16384}, {1300, 2112, 7168}, {700, 7168, 1536}}) {
    const uint64_t seed = std::random_device{}() / 2;
    LinearCase c(GetParam(), m, n, k, seed);
    std::mt19937_64 random(seed + 9);
    std::vector<int64_t> places;
    std::vector<double> want;
    for (int i = 0; i < 1500; ++i) {
      places.push_back(static_cast<int64_t>(random() % (m * n)));
      want.push_back(c.expected_at(places.back() / n, places.back() % n));
    }
    for (const cuda::LinearTile tile : cuda::kLinearTiles) {
      c.poison();
      cuda::wgmma_linear_with(tile, c.params(), test_launch());
      const std::vector<float> out = c.result();
      std::vector<float> seen;
      for (const int64_t place : places) seen.push_back(out[place]);
      size_t unwritten = 0;
      for (const float value : out) unwritten += std::isnan(value) ? 1 : 0;
      EXPECT_EQ(unwritten, 0U) << c.name() << " tile " << static_cast<int>(tile);
      const double error = relative_difference(seen, want);
      EXPECT_LE(error, kTolerance) << c.name() << " tile " << static_cast<int>(tile) << " seed " << seed;
      c.poison();
      cuda::wgmma_linear_with(tile, c.params(), test_launch());
      EXPECT_EQ(c.result(), out) << "bits of a second run";
    }
  }
}

// Several blocks share the steps of the last round's tiles, both where it is the only round and after a whole
// round; the last tiles have two rows.
TEST_P(W8a8, TilesThatShareTheLastRoundMatchDoubleSums) {
  static cuda::GemmLibrary library;
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{700, 1536, 7168}, {2050, 2112, 7168}}) {
    constexpr auto kTile = cuda::LinearTile::k128x192;
    ASSERT_GT(cuda::linear_rest(kTile, GetParam(), m, n, k, test_launch().num_sms).tiles, 0);
    const uint64_t seed = std::random_device{}() / 2;
    LinearCase c(GetParam(), m, n, k, seed);
    std::mt19937_64 random(seed + 9);
    std::vector<int64_t> places;
    std::vector<double> want;
    for (int i = 0; i < 1500; ++i) {
      const int64_t row = i < 1000 ? random() % m : m - 1 - random() % 300;
      places.push_back(row * n + static_cast<int64_t>(random() % n));
      want.push_back(c.expected_at(places.back() / n, places.back() % n));
    }
    std::vector<float> first;
    for (int run = 0; run < 3; ++run) {
      c.poison();
      cuda::wgmma_linear_with(kTile, c.params(), test_launch(), rest_workspace(library));
      const std::vector<float> out = c.result();
      if (run > 0) {
        EXPECT_EQ(out, first) << "bits of run " << run;
        continue;
      }
      first = out;
      std::vector<float> seen;
      for (const int64_t place : places) seen.push_back(out[place]);
      size_t unwritten = 0;
      for (const float value : out) unwritten += std::isnan(value) ? 1 : 0;
      EXPECT_EQ(unwritten, 0U) << c.name();
      EXPECT_LE(relative_difference(seen, want), kTolerance) << c.name() << " seed " << seed;
    }
  }
}

TEST_P(W8a8, SmallAndRaggedShapesMatchDoublePrecision) {
  static cuda::GemmLibrary library;
  uint64_t seed = std::random_device{}() / 2;
  for (const int64_t m : {1, 2, 5, 17, 70}) {
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{96, 64}, {576, 256}, {8, 72}, {33, 104}, {3, 40}}) {
      LinearCase c(GetParam(), m, n, k, seed += 3);
      cuda::linear(c.params(), library, test_launch());
      // Among a few outputs the largest may be the one with the worst rounding.
      const double tolerance = m * n < 256 ? kOneRounding : kTolerance;
      expect_close(c.result(), c.expected(), tolerance, n, c.name() + " seed " + std::to_string(seed));
    }
  }
}

TEST_P(W8a8, ModelShapesEqualThePlainKernel) {
  static cuda::GemmLibrary library;
  uint64_t seed = std::random_device{}() / 2;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{3648, 2048}, {2112, 7168}, {1024, 16384}}) {
    for (const int64_t m : {1, 16, 48, 130}) {
      if (k > 8000 && m > 16) continue;
      LinearCase c(GetParam(), m, n, k, seed += 3);
      cuda::reference::linear(c.params(), test_launch(true));
      const std::vector<float> want = c.result();
      c.poison();
      cuda::linear(c.params(), library, test_launch());
      const std::vector<float> out = c.result();
      EXPECT_LE(relative_difference(out, want), kTolerance)
          << c.name() << " seed " << seed << ": " << first_difference(out, want, n, 10 * kTolerance);
      c.poison();
      cuda::linear(c.params(), library, test_launch());
      EXPECT_EQ(c.result(), out) << c.name();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, W8a8,
                         ::testing::Values(WeightType::kInt8Channel, WeightType::kFp8Channel,
                                           WeightType::kInt8Block),
                         [](const auto& type) {
                           return type.param == WeightType::kInt8Channel  ? "int8_channel"
                                  : type.param == WeightType::kFp8Channel ? "fp8_channel"
                                                                          : "int8_block";
                         });

}  // namespace
}  // namespace hadal::testing
