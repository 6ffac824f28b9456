// Compares linear on the device with double precision: the plain kernel, and every instantiation and schedule
// of the weight-streaming kernel. At the models' own sizes the tuned kernels are compared with the plain
// kernel.
#include <gtest/gtest.h>

#include "kernels/cuda/gemm/router/supports.h"
#include "kernels/cuda/gemm/variants.h"
#include "tests/cuda/gemm/linear_case.h"
#include "tests/cuda/test_launch.h"

namespace hadal::testing {
namespace {

using cuda::GemmLibrary;

constexpr double kBf16Tolerance = 4e-3;  // outputs are rounded to bf16: at most 2^-9 of each
constexpr double kF16Tolerance = 5e-4;   // the same for float16: at most 2^-12
constexpr double kFp8Tolerance = 4e-3;   // the tensor cores keep 14 bits within each 128 of k

GemmLibrary& library() {
  static GemmLibrary shared;
  return shared;
}

double tolerance_of(WeightType type) {
  return type == WeightType::kFp8Block ? kFp8Tolerance
         : type == WeightType::kF16    ? kF16Tolerance
                                       : kBf16Tolerance;
}

void expect_close(const LinearCase& c, const std::vector<double>& want, double tolerance, int64_t columns,
                  const std::string& what) {
  const std::vector<float> out = c.result();
  const double error = relative_difference(out, want);
  EXPECT_LE(error, tolerance) << c.name() << " " << what << ": "
                              << first_difference(out, want, columns, 10 * tolerance);
}

TEST(PlainLinear, MatchesDoublePrecision) {
  uint64_t seed = 1;
  for (const WeightType type :
       {WeightType::kBF16, WeightType::kF16, WeightType::kFp8Block, WeightType::kF32}) {
    for (const auto& [m, n, k] :
         {std::array<int64_t, 3>{1, 96, 64}, {3, 40, 200}, {5, 130, 448}, {2, 257, 576}}) {
      for (const bool f32 : {false, true}) {
        LinearCase c(type, m, n, k, seed += 10, f32);
        cuda::reference::linear(c.params(), test_launch(true));
        expect_close(c, c.expected(), f32 ? 1e-5 : tolerance_of(type), n, "plain");
      }
    }
  }
}

// Runs every tile width, number of warpgroups and split, with ragged n, k and m.
class SkinnySchedules : public ::testing::TestWithParam<WeightType> {};

TEST_P(SkinnySchedules, MatchDoublePrecision) {
  const WeightType type = GetParam();
  uint64_t seed = 100;
  for (const auto& [tokens, m] : {std::pair{8, 1}, {8, 7}, {16, 9}, {16, 16}, {32, 31}, {64, 40}, {64, 64}}) {
    for (const int groups : {1, 2}) {
      if (groups == 2 && !cuda::skinny::has_two_groups(type)) continue;
      // k has nine or more blocks of 128 bytes, and there are three tiles of rows; the last ones are ragged.
      const int64_t k = type == WeightType::kFp8Block ? 1160 : 616;
      const int64_t n = groups * 128 + 41;
      LinearCase c(type, m, n, k, seed += 10, m % 2 == 1);
      ASSERT_TRUE(cuda::skinny::supports(cuda::linear_shape(c.params())));
      const std::vector<double> want = c.expected();
      for (const int splits : {1, 2, 3, 5, 8}) {
        for (const int stages : {2, 5}) {
          c.poison();
          cuda::skinny_linear(c.params(), test_launch(),
                              {.tokens = tokens, .groups = groups, .splits = splits, .stages = stages});
          expect_close(c, want, tolerance_of(type), n,
                       "tokens " + std::to_string(tokens) + " groups " + std::to_string(groups) + " splits " +
                           std::to_string(splits) + " stages " + std::to_string(stages));
          if (HasFailure()) return;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SkinnySchedules,
                         ::testing::Values(WeightType::kBF16, WeightType::kF16, WeightType::kFp8Block),
                         [](const auto& type) {
                           return type.param == WeightType::kBF16  ? "bf16"
                                  : type.param == WeightType::kF16 ? "f16"
                                                                   : "fp8";
                         });

TEST(ThinLinear, MatchesDoublePrecision) {
  uint64_t seed = 3000;
  for (const WeightType type : {WeightType::kBF16, WeightType::kF16, WeightType::kFp8Block}) {
    for (const int64_t m : {1, 2, 7, 8, 9, 16}) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{96, 64},
                                 {41, 448},
                                 {200, 1160},
                                 {16, 2048},
                                 {33, 4616},
                                 {2200, 2048}}) {
        LinearCase c(type, m, n, k, seed += 10, m % 2 == 0);
        ASSERT_TRUE(cuda::thin::supports(cuda::linear_shape(c.params())));
        cuda::thin_linear(c.params(), test_launch());
        expect_close(c, c.expected(), tolerance_of(type), n, "thin");
      }
    }
  }
}

TEST(Linear, SmallAndRaggedShapesMatchDoublePrecision) {
  uint64_t seed = 5000;
  for (const WeightType type :
       {WeightType::kBF16, WeightType::kF16, WeightType::kFp8Block, WeightType::kF32}) {
    for (const int64_t m : {1, 2, 5, 17, 70}) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{96, 64},
                                 {64, 448},
                                 {576, 256},
                                 {8, 72},
                                 {33, 104},
                                 {160, 100},
                                 {200, 128},
                                 {3, 40}}) {
        seed += 10;
        LinearCase c(type, m, n, k, seed, seed % 20 == 0);
        cuda::linear(c.params(), library(), test_launch());
        expect_close(c, c.expected(), tolerance_of(type), n, "linear");
      }
    }
  }
}

// Compares linear at the models' own sizes with the plain kernel, which the tests above compare with double
// precision.
void expect_equals_plain(WeightType type, int64_t m, int64_t n, int64_t k, bool f32, uint64_t seed) {
  LinearCase c(type, m, n, k, seed, f32);
  cuda::reference::linear(c.params(), test_launch(true));
  const std::vector<float> want = c.result();
  c.poison();
  cuda::linear(c.params(), library(), test_launch());
  const std::vector<float> out = c.result();
  const double tolerance = type == WeightType::kF32 && f32 ? 1e-5 : tolerance_of(type);
  EXPECT_LE(relative_difference(out, want), tolerance)
      << c.name() << ": " << first_difference(out, want, n, 10 * tolerance);
  // A second run gives the same bits.
  c.poison();
  cuda::linear(c.params(), library(), test_launch());
  EXPECT_EQ(c.result(), out) << c.name();
}

TEST(Linear, ModelShapesIn16BitsMatchThePlainKernel) {
  uint64_t seed = 9000;
  for (const WeightType type : {WeightType::kBF16, WeightType::kF16}) {
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{3648, 2048}, {2048, 2048}, {64, 2048}, {2048, 11008}}) {
      for (const int64_t m : {1, 8, 24, 64, 128}) expect_equals_plain(type, m, n, k, m == 8, seed += 10);
    }
  }
}

TEST(Linear, ModelShapesInFp8MatchThePlainKernel) {
  uint64_t seed = 19000;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{3648, 2048}, {2112, 7168}, {2048, 1408}}) {
    for (const int64_t m : {1, 16, 48, 128})
      expect_equals_plain(WeightType::kFp8Block, m, n, k, false, seed += 10);
  }
}

TEST(Linear, RoutersMatchThePlainKernel) {
  uint64_t seed = 29000;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{64, 2048}, {256, 7168}}) {
    for (const int64_t m : {1, 3, 8, 33, 140})
      expect_equals_plain(WeightType::kF32, m, n, k, true, seed += 10);
  }
  LinearCase c(WeightType::kF32, 33, 256, 7168, seed + 10, true, false, true);
  cuda::linear(c.params(), library(), test_launch());
  expect_close(c, c.expected(), 1e-5, 256, "router of float16 rows");
}

TEST(Linear, RoutersIn16BitsMatchDoublePrecision) {
  uint64_t seed = 39000;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{64, 2048}, {37, 264}}) {
    for (const int64_t m : {1, 3, 8, 33, 140}) {
      for (const WeightType type : {WeightType::kBF16, WeightType::kF16}) {
        LinearCase c(type, m, n, k, seed += 10, true);
        ASSERT_TRUE(cuda::router::supports(cuda::linear_shape(c.params())));
        cuda::router_linear(c.params(), test_launch());
        expect_close(c, c.expected(), 1e-5, n, "router");
      }
    }
  }
}

// A product behind a gate is computed, with the same bits, if any of the lengths is above the limit, and
// otherwise writes nothing. There are more lengths than a block has threads.
TEST(LengthGate, DecidesWhetherAProductIsComputed) {
  constexpr int32_t kLimit = 2048;
  std::vector<int32_t> lengths(700, kLimit);
  lengths[1] = 0;
  const DeviceArray<int32_t> none(lengths);
  lengths.back() = kLimit + 1;
  const DeviceArray<int32_t> last(lengths);
  const auto expect_gated = [&](LinearCase& c, const std::string& what, const auto& launch) {
    SCOPED_TRACE(c.name() + " " + what);
    cuda::DenseLinearParams params = c.params();
    c.poison();
    launch(params);
    const std::vector<float> want = c.result();
    const auto with = [&](const DeviceArray<int32_t>& some) {
      c.poison();
      params.gate.lengths = some.data();
      params.gate.count = static_cast<int32_t>(some.size());
      launch(params);
      return c.result();
    };
    params.gate.limit = kLimit;
    for (const bool settled : {false, true}) {
      params.gate.settled = settled;
      EXPECT_EQ(with(last), want);
      for (const float value : with(none)) ASSERT_TRUE(std::isnan(value)) << "something was written";
    }
  };
  uint64_t seed = 49000;
  for (const WeightType type : {WeightType::kBF16, WeightType::kFp8Block, WeightType::kInt8Channel}) {
    for (const int64_t m : {1, 16}) {
      LinearCase c(type, m, 300, 1160, seed += 10, true);
      expect_gated(c, "thin", [](const auto& p) { cuda::thin_linear(p, test_launch()); });
      for (const int splits : {1, 3}) {
        expect_gated(c, "skinny, splits " + std::to_string(splits), [&](const auto& p) {
          cuda::skinny_linear(p, test_launch(),
                              {.tokens = m == 1 ? 8 : 16, .groups = 1, .splits = splits, .stages = 4});
        });
      }
      if (!has_scales(type))
        expect_gated(c, "router", [](const auto& p) { cuda::router_linear(p, test_launch()); });
    }
  }
}

}  // namespace
}  // namespace hadal::testing
