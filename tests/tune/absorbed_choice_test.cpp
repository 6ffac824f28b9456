// Tests which kernel an absorbed product gets, and how many tokens its tiles have. The kernel for few tokens
// serves up to a border that depends on heads and weights, and the tiled kernel serves more tokens.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cuda/gemm/absorbed/choice.h"

namespace hadal::cuda {
namespace {

constexpr int kHeads[] = {1, 2, 4, 8, 16, 32, 64, 128};

// Returns the fewest tokens for which the tiled kernel is chosen; for more tokens, that kernel is always
// chosen.
template <typename Choose>
int64_t border(const Choose& choose, WeightType type, int heads) {
  int64_t m = 1;
  while (choose(type, m, heads) == AbsorbedKernel::kFew) ++m;
  for (int64_t more = m; more < 3 * m + 100; ++more)
    EXPECT_EQ(choose(type, more, heads), AbsorbedKernel::kTiled) << more << " tokens, " << heads << " heads";
  return m;
}

TEST(AbsorbedChoice, HasOneBorderOfTokens) {
  for (const WeightType type : {WeightType::kBF16, WeightType::kFp8Block}) {
    for (const int heads : kHeads) {
      EXPECT_LE(border(choose_absorb_query, type, heads), 768 / heads + 1) << heads << " heads";
      EXPECT_LE(border(choose_expand_value, type, heads), std::max(17, 1024 / heads + 1))
          << heads << " heads";
    }
  }
}

// A batch of 5 that runs in a graph of 8 has the kernel, and therefore the bits, of a batch of 8.
TEST(AbsorbedChoice, PaddingToAPowerOfTwoChangesNothing) {
  for (const WeightType type : {WeightType::kBF16, WeightType::kFp8Block}) {
    for (const int heads : kHeads) {
      for (int64_t graph = 1; graph <= 512; graph *= 2) {
        for (int64_t m = graph / 2 + 1; m <= graph; ++m) {
          EXPECT_EQ(choose_absorb_query(type, m, heads), choose_absorb_query(type, graph, heads)) << m;
          EXPECT_EQ(choose_expand_value(type, m, heads), choose_expand_value(type, graph, heads)) << m;
        }
      }
    }
  }
}

// Compares the choices on either side of each measured border.
TEST(AbsorbedChoice, BordersAreAsMeasured) {
  struct Row {
    WeightType type;
    int heads;
    int64_t absorb_few, absorb_tiled, expand_few, expand_tiled;
  };
  constexpr Row kRows[] = {
      {WeightType::kBF16, 128, 1, 8, 16, 32},       {WeightType::kBF16, 64, 1, 8, 16, 32},
      {WeightType::kBF16, 32, 16, 32, 16, 32},      {WeightType::kBF16, 16, 32, 64, 32, 64},
      {WeightType::kBF16, 8, 64, 128, 64, 128},     {WeightType::kFp8Block, 128, 0, 1, 16, 32},
      {WeightType::kFp8Block, 64, 0, 1, 16, 32},    {WeightType::kFp8Block, 32, 16, 32, 32, 64},
      {WeightType::kFp8Block, 16, 32, 64, 64, 128}, {WeightType::kFp8Block, 8, 64, 128, 128, 256},
  };
  for (const Row& row : kRows) {
    if (row.absorb_few > 0) {  // 0: never
      EXPECT_EQ(choose_absorb_query(row.type, row.absorb_few, row.heads), AbsorbedKernel::kFew);
    }
    EXPECT_EQ(choose_absorb_query(row.type, row.absorb_tiled, row.heads), AbsorbedKernel::kTiled);
    EXPECT_EQ(choose_expand_value(row.type, row.expand_few, row.heads), AbsorbedKernel::kFew);
    EXPECT_EQ(choose_expand_value(row.type, row.expand_tiled, row.heads), AbsorbedKernel::kTiled);
  }
}

// A block computes a run of tiles. Tiles have 128 tokens only if the device holds all blocks of such tiles at
// once, but not all blocks of tiles of 64.
TEST(AbsorbedChoice, TilesOfExpandValueFillTheDevice) {
  EXPECT_EQ(expand_value_tile(1, 128, 132), 64);
  EXPECT_EQ(expand_value_tile(64, 128, 132), 64);
  EXPECT_EQ(expand_value_tile(65, 128, 132), 128);
  EXPECT_EQ(expand_value_tile(128, 128, 132), 128);
  EXPECT_EQ(expand_value_tile(129, 128, 132), 64);
  EXPECT_EQ(expand_value_tile(512, 16, 132), 64);
  EXPECT_EQ(expand_value_tile(513, 16, 132), 128);
  EXPECT_EQ(expand_value_tile(1024, 16, 132), 128);
  EXPECT_EQ(expand_value_tile(1025, 16, 132), 64);
  EXPECT_EQ(expand_value_tile(512, 16, 114), 128);
  EXPECT_EQ(expand_value_tile(65536, 1, 132), 64);
}

}  // namespace
}  // namespace hadal::cuda
