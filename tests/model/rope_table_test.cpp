#include "model/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>

namespace hadal {
namespace {

ModelConfig yarn_config(double mscale, double mscale_all_dim) {
  ModelConfig config;
  config.rope_scaling = RopeScaling{.factor = 40, .mscale = mscale, .mscale_all_dim = mscale_all_dim};
  return config;
}

TEST(RopeTable, PlainFrequenciesAreThePowersOfTheta) {
  const RopeTable table{ModelConfig{}};
  for (int i = 0; i < 32; ++i) {
    EXPECT_NEAR(table.inverse_frequencies()[i], std::pow(10000.0, -i / 32.0), 1e-15);
  }
}

// In the published configs pairs up to 10 keep their frequency, and pairs from 23 on are divided by 40.
TEST(RopeTable, YarnRampsBetweenKeptAndInterpolatedPairs) {
  const RopeTable table(yarn_config(1.0, 1.0));
  const auto& inv_freq = table.inverse_frequencies();
  auto ratio = [&](int i) { return inv_freq[i] / std::pow(10000.0, -i / 32.0); };
  for (int i = 0; i <= 10; ++i) EXPECT_NEAR(ratio(i), 1.0, 1e-12) << i;
  for (int i = 11; i < 23; ++i) {
    EXPECT_NEAR(ratio(i), 1.0 - (i - 10) / 13.0 * (1.0 - 1.0 / 40.0), 1e-12) << i;
  }
  for (int i = 23; i < 32; ++i) EXPECT_NEAR(ratio(i), 1.0 / 40.0, 1e-12) << i;
}

TEST(RopeTable, RowsAreCosinesThenSinesAndGrowingKeepsThem) {
  RopeTable table(yarn_config(0.707, 0.707));
  const float early = table.up_to(5)[4 * 64 + 3];
  const float* rows = table.up_to(10000);
  EXPECT_EQ(rows[4 * 64 + 3], early);
  for (const int64_t position : {0, 1, 4095, 9999}) {
    for (const int i : {0, 15, 31}) {
      const double angle = static_cast<double>(position) * table.inverse_frequencies()[i];
      EXPECT_NEAR(rows[position * 64 + i], std::cos(angle), 1e-6);
      EXPECT_NEAR(rows[position * 64 + 32 + i], std::sin(angle), 1e-6);
    }
  }
}

TEST(RopeTable, UnequalMscalesChangeTheMagnitude) {
  RopeTable table(yarn_config(1.0, 0.5));
  EXPECT_NEAR(table.up_to(1)[0], (0.1 * std::log(40.0) + 1) / (0.05 * std::log(40.0) + 1), 1e-6);
}

TEST(ModelConfig, SoftmaxScaleIncludesYarnsMagnitudeSquared) {
  EXPECT_NEAR(ModelConfig{}.softmax_scale(), 1.0 / std::sqrt(192.0), 1e-12);
  EXPECT_NEAR(yarn_config(0.707, 0.707).softmax_scale(), 0.11472, 5e-6);
  EXPECT_NEAR(yarn_config(1.0, 1.0).softmax_scale(), 0.13523, 5e-6);
}

}  // namespace
}  // namespace hadal
