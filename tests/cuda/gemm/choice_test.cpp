// Checks every choice that linear's table allows: all kernels in all configurations. Shapes with ragged edges
// are compared with double precision, and the models' sizes with the plain kernel.
#include <gtest/gtest.h>

#include <array>

#include "kernels/cuda/gemm/variants.h"
#include "tests/cuda/gemm/linear_case.h"
#include "tests/cuda/test_launch.h"

namespace hadal::testing {
namespace {

using cuda::GemmLibrary;

// Outputs are rounded to bf16; FP8 tensor cores keep 14 bits.
constexpr double tolerance_of(WeightType type) {
  return type == WeightType::kF16 ? 5e-4 : 4e-3;
}

GemmLibrary& library() {
  static GemmLibrary shared;
  return shared;
}

// Runs every choice into poisoned memory; returns the number of choices.
template <typename Want>
int expect_all_right(LinearCase& c, const Want& want, int64_t columns) {
  const cuda::LinearShape shape = cuda::linear_shape(c.params(), test_launch().num_sms);
  const double tolerance = tolerance_of(shape.type);
  const std::vector<cuda::LinearChoice> choices = cuda::valid_choices(shape);
  for (const cuda::LinearChoice& choice : choices) {
    c.poison();
    cuda::launch_linear(choice, c.params(), library(), test_launch());
    const std::vector<float> out = c.result();
    EXPECT_LE(relative_difference(out, want), tolerance)
        << c.name() << " " << to_string(choice) << ": "
        << first_difference(out, want, columns, 10 * tolerance);
    if (::testing::Test::HasFailure()) break;
  }
  return static_cast<int>(choices.size());
}

class LinearChoices : public ::testing::TestWithParam<WeightType> {};

TEST_P(LinearChoices, MatchDoublePrecisionOnRaggedShapes) {
  uint64_t seed = 70000;
  for (const int64_t m : {1, 7, 16, 33, 64, 130}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{200, 1160}, {576, 448}}) {
      LinearCase c(GetParam(), m, n, k, seed += 10, false);
      EXPECT_GT(expect_all_right(c, c.expected(), n), 0) << c.name();
      if (HasFailure()) return;
    }
  }
}

TEST_P(LinearChoices, MatchThePlainKernelAtModelShapes) {
  uint64_t seed = 80000;
  for (const auto& [m, n, k] : {std::array<int64_t, 3>{16, 2112, 7168},
                                {64, 2112, 7168},
                                {256, 2112, 7168},
                                {1, 3072, 1536},
                                {64, 3072, 1536}}) {
    LinearCase c(GetParam(), m, n, k, seed += 10, false);
    cuda::reference::linear(c.params(), test_launch(true));
    const std::vector<float> want = c.result();
    EXPECT_GT(expect_all_right(c, want, n), 0) << c.name();
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, LinearChoices,
                         ::testing::Values(WeightType::kBF16, WeightType::kF16, WeightType::kFp8Block,
                                           WeightType::kInt8Block, WeightType::kFp8Channel,
                                           WeightType::kInt8Channel),
                         [](const auto& type) {
                           return type.param == WeightType::kBF16         ? "bf16"
                                  : type.param == WeightType::kF16        ? "f16"
                                  : type.param == WeightType::kFp8Block   ? "fp8"
                                  : type.param == WeightType::kInt8Block  ? "int8"
                                  : type.param == WeightType::kFp8Channel ? "fp8_channel"
                                                                          : "int8_channel";
                         });

// Measured choices decide the launch: a table's choice gives that kernel's bits.
TEST(MeasuredChoices, AreLaunched) {
  LinearCase c(WeightType::kFp8Block, 8, 2112, 7168, 90001, false);
  const cuda::LinearChoice choice = cuda::parse_choice("skinny 8x128 splits 8 stages 4").value();
  cuda::LinearTable table;
  table.set(WeightType::kFp8Block, 2112, 7168, 8, choice);
  ASSERT_NE(choice, cuda::heuristic(cuda::linear_shape(c.params(), test_launch().num_sms)));
  cuda::launch_linear(choice, c.params(), library(), test_launch());
  const std::vector<float> want = c.result();
  c.poison();
  cuda::linear(c.params(), library(), test_launch(), &table);
  EXPECT_EQ(c.result(), want);
}

// A choice that does not support the shape throws before anything is launched.
TEST(LinearLaunch, RefusesChoicesThatDoNotSupportTheShape) {
  LinearCase c(WeightType::kFp8Block, 16, 2112, 7168, 90101, false);
  for (const char* text : {"columns 208x128 stages 4 cluster 2", "tiled 64x64 stages 4", "library",
                           "skinny 8x64 splits 8 stages 6", "thin 8x16"}) {
    const cuda::LinearChoice choice = cuda::parse_choice(text).value();
    EXPECT_THROW(cuda::launch_linear(choice, c.params(), library(), test_launch()), Error) << text;
  }
}

}  // namespace
}  // namespace hadal::testing
