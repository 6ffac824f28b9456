#include "base/gumbel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace hadal {
namespace {

TEST(Gumbel, BitsAreTheTokensWordOfPhiloxKeyedBySeedAndPosition) {
  const uint64_t seed = 0xa4093822299f31d0U;
  const uint64_t position = 0x123456789abcdef0U;
  const auto words = philox4x32_10({0x9abcdef0U, 0x12345678U, 32319, 0}, {0x299f31d0U, 0xa4093822U});
  EXPECT_EQ(noise_bits_of_four(seed, position, 32319), words);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(noise_bits(seed, position, 4 * 32319 + i), words[i]);
}

TEST(Gumbel, TheExponentialHasFullPrecisionInBothTails) {
  for (const uint32_t bits :
       {0U, 1U, 77U, 0x10000U, 0x7ffffeffU, 0x7fffffffU, 0x80000000U, 0xfffffff0U, 0xffffffffU}) {
    const double rest = (bits + 0.5) * 0x1p-32;  // 1 − u
    const double expected = -std::log1p(-rest);
    const double found = exponential_noise(bits);
    EXPECT_NEAR(found / expected, 1.0, 4e-7) << bits;
    EXPECT_GE(found * (1.0 + 1e-6), rest) << bits;
    EXPECT_LE(-std::log(found), static_cast<double>(kLargestGumbel)) << bits;
  }
  EXPECT_LT(exponential_noise(0xffffffffU), 23.0F);
}

TEST(Gumbel, TheNoiseHasTheMomentsOfItsDistribution) {
  constexpr int kSamples = 400000;
  double sum = 0.0;
  double sum_of_squares = 0.0;
  double sum_of_products = 0.0;  // of a token's noise and the previous token's
  double before = 0.0;
  for (int i = 0; i < kSamples; ++i) {
    const double noise = -std::log(exponential_noise(noise_bits(42, i / 1000, i % 1000)));
    sum += noise;
    sum_of_squares += noise * noise;
    sum_of_products += noise * before;
    before = noise;
  }
  const double mean = sum / kSamples;
  EXPECT_NEAR(mean, 0.5772157, 0.01);  // Euler's constant, five standard errors
  EXPECT_NEAR(sum_of_squares / kSamples - mean * mean, 1.644934, 0.03);
  EXPECT_NEAR(sum_of_products / kSamples - mean * mean, 0.0, 0.015);
}

TEST(Gumbel, NeighbouringSeedsPositionsAndTokensDiffer) {
  std::set<uint32_t> seen;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    for (uint64_t position = 0; position < 8; ++position) {
      for (uint32_t token = 0; token < 8; ++token) seen.insert(noise_bits(seed, position, token));
    }
  }
  EXPECT_EQ(seen.size(), 512U);
}

}  // namespace
}  // namespace hadal
