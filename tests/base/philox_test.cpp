#include "base/philox.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>

namespace hadal {
namespace {

using Counter = std::array<uint32_t, 4>;
using Key = std::array<uint32_t, 2>;

// The answers are those that the authors published with their Random123 library.
TEST(Philox, MatchesThePublishedKnownAnswers) {
  EXPECT_EQ(philox4x32_10(Counter{0, 0, 0, 0}, Key{0, 0}),
            (Counter{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}));
  EXPECT_EQ(philox4x32_10(Counter{0xffffffffU, 0xffffffffU, 0xffffffffU, 0xffffffffU},
                          Key{0xffffffffU, 0xffffffffU}),
            (Counter{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}));
  EXPECT_EQ(philox4x32_10(Counter{0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U},
                          Key{0xa4093822U, 0x299f31d0U}),
            (Counter{0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U}));
}

TEST(Philox, UniformUsesSeedAsKeyAndPositionAsCounter) {
  const uint64_t seed = 0xa4093822299f31d0U;
  const uint64_t position = 0x123456789abcdef0U;
  const auto bits = philox4x32_10(Counter{0x9abcdef0U, 0x12345678U, 0, 0}, Key{0x299f31d0U, 0xa4093822U});
  EXPECT_EQ(philox_uniform(seed, position), static_cast<float>(bits[0] >> 8) / 16777216.0F);
}

TEST(Philox, UniformStaysBelowOneWithTheRightMeanAndSpread) {
  constexpr int kSamples = 100000;
  double sum = 0;
  double sum_of_squares = 0;
  for (int i = 0; i < kSamples; ++i) {
    const float u = philox_uniform(42, static_cast<uint64_t>(i));
    ASSERT_GE(u, 0.0F);
    ASSERT_LT(u, 1.0F);
    sum += u;
    sum_of_squares += static_cast<double>(u) * u;
  }
  const double mean = sum / kSamples;
  EXPECT_NEAR(mean, 0.5, 0.005);  // five standard errors
  EXPECT_NEAR(sum_of_squares / kSamples - mean * mean, 1.0 / 12, 0.002);
}

TEST(Philox, NeighbouringSeedsAndPositionsDiffer) {
  std::set<float> seen;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    for (uint64_t position = 0; position < 8; ++position) seen.insert(philox_uniform(seed, position));
  }
  EXPECT_EQ(seen.size(), 64U);
}

}  // namespace
}  // namespace hadal
