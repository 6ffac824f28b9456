#include "base/simulated_acceptance.h"

#include <gtest/gtest.h>

#include <cmath>

namespace hadal {
namespace {

TEST(SimulatedAcceptance, AcceptsAllDraftsNoneOrTheGivenShare) {
  constexpr int kDrafts = 100'000;
  for (const double chance : {0.0, 0.36, 0.92, 1.0}) {
    int accepted = 0;
    for (int i = 0; i < kDrafts; ++i)
      accepted += simulates_acceptance(7 + i / 1000, i % 1000, chance) ? 1 : 0;
    const double deviation = std::sqrt(chance * (1.0 - chance) / kDrafts);
    EXPECT_NEAR(accepted / static_cast<double>(kDrafts), chance, 4.0 * deviation) << chance;
  }
}

TEST(SimulatedAcceptance, DependsOnSeedAndPosition) {
  int differs_by_seed = 0;
  int differs_by_position = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    const bool accepted = simulates_acceptance(3, i, 0.5);
    EXPECT_EQ(accepted, simulates_acceptance(3, i, 0.5));
    differs_by_seed += accepted != simulates_acceptance(4, i, 0.5) ? 1 : 0;
    differs_by_position += accepted != simulates_acceptance(3, i + (uint64_t{1} << 32), 0.5) ? 1 : 0;
  }
  EXPECT_NEAR(differs_by_seed, 500, 100);
  EXPECT_NEAR(differs_by_position, 500, 100);
}

}  // namespace
}  // namespace hadal
