// Tests how the choice of keys is cut, and the index arithmetic of its kernels. No device is needed.
#include "kernels/cuda/indexer/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "base/check.h"

namespace hadal::testing {
namespace {

using cuda::IndexSelectPlan;
using cuda::IndexSelectShape;

IndexSelectPlan plan_of(int64_t num_rows, int64_t most_keys, int topk = 2048, bool share = false) {
  return cuda::index_select_plan(
      {.num_rows = num_rows, .num_heads = 64, .topk = topk, .most_keys = most_keys, .rows_share_keys = share},
      132);
}

TEST(IndexSelectPlan, WorkspaceNeverExceeds256MB) {
  for (int64_t rows : {1, 2, 63, 64, 409, 410, 512, 4096, 8192, 16384}) {
    for (int64_t keys : {2049, 4096, 32768, 131072, 163840, 1048576}) {
      for (bool share : {false, true}) {
        const IndexSelectPlan plan = plan_of(rows, keys, 2048, share);
        EXPECT_LE(plan.workspace_bytes, size_t{256} << 20) << rows << " rows of " << keys;
        EXPECT_GE(plan.rows_at_once, 1);
        EXPECT_LE(plan.rows_at_once, rows);
        EXPECT_GE(plan.score_stride, keys);
        EXPECT_EQ(plan.score_stride % kPageSize, 0);
        EXPECT_EQ(plan.workspace_bytes, static_cast<size_t>(plan.rows_at_once * plan.score_stride * 4));
        EXPECT_LE((plan.rows_at_once + plan.group_rows - 1) / plan.group_rows, cuda::kMaxIndexGroups);
      }
    }
  }
}

TEST(IndexSelectPlan, OneRowOfTheLongestContextHasEightBlocks) {
  const IndexSelectPlan plan = plan_of(1, 163840);
  EXPECT_EQ(plan.rows_at_once, 1);
  EXPECT_EQ(plan.workspace_bytes, 163840U * 4);
  EXPECT_EQ(plan.select_cluster, 8);
  EXPECT_EQ(plan_of(4096, 4096).select_cluster, 1);
}

TEST(IndexSelectPlan, ClustersGrowWhileAllTheirBlocksFitTheDevice) {
  const auto cluster = [](int64_t rows, int num_sms) {
    return cuda::index_select_plan({.num_rows = rows, .num_heads = 64, .topk = 2048, .most_keys = 4096},
                                   num_sms)
        .select_cluster;
  };
  EXPECT_EQ(cluster(66, 132), 8);
  EXPECT_EQ(cluster(67, 132), 4);
  EXPECT_EQ(cluster(264, 132), 2);
  EXPECT_EQ(cluster(265, 132), 1);
  EXPECT_EQ(cluster(66, 78), 4);
}

TEST(IndexSelectPlan, ShapesWithoutSelectionNeedNothing) {
  for (int64_t keys : {0, 1, 2047, 2048}) {
    const IndexSelectPlan plan = plan_of(100, keys);
    EXPECT_EQ(plan.workspace_bytes, 0U);
    EXPECT_EQ(plan.rows_at_once, 0);
  }
  EXPECT_EQ(plan_of(0, 5000).workspace_bytes, 0U);
}

TEST(IndexSelectPlan, RefusesShapesOutsideTheModelsLimits) {
  const IndexSelectShape good{.num_rows = 1, .num_heads = 64, .topk = 2048, .most_keys = 4096};
  for (int heads : {0, 65}) {
    IndexSelectShape shape = good;
    shape.num_heads = heads;
    EXPECT_THROW(cuda::index_select_plan(shape, 132), Error);
  }
  for (int topk : {0, 2049}) {
    IndexSelectShape shape = good;
    shape.topk = topk;
    EXPECT_THROW(cuda::index_select_plan(shape, 132), Error);
  }
  IndexSelectShape shape = good;
  shape.most_keys = -1;
  EXPECT_THROW(cuda::index_select_plan(shape, 132), Error);
}

TEST(IndexSelectPlan, BlocksShareAllUnitsEvenly) {
  for (int64_t units : {0, 1, 5, 131, 132, 133, 5000, 5242880}) {
    for (int blocks : {1, 2, 78, 132}) {
      EXPECT_EQ(cuda::share_begin(units, 0, blocks), 0);
      EXPECT_EQ(cuda::share_begin(units, blocks, blocks), units);
      for (int block = 0; block < blocks; ++block) {
        const int size =
            cuda::share_begin(units, block + 1, blocks) - cuda::share_begin(units, block, blocks);
        EXPECT_GE(size, units / blocks);
        EXPECT_LE(size, units / blocks + 1);
      }
    }
  }
}

TEST(IndexSelectPlan, UnitsCoverTheKeysOfRowsThatSelect) {
  EXPECT_EQ(cuda::index_units(0, 64), 0);
  EXPECT_EQ(cuda::index_units(64, 64), 0);
  EXPECT_EQ(cuda::index_units(65, 64), 3);
  EXPECT_EQ(cuda::index_units(96, 64), 3);
  EXPECT_EQ(cuda::index_units(97, 64), 4);
  EXPECT_EQ(cuda::index_units(163840, 2048), 5120);
}

// A lane reads 16 bytes, which lie in four banks. Eight lanes read at once, from all 32 banks.
TEST(IndexSelectPlan, EightLanesReadKeysFromDifferentBanks) {
  std::set<uint32_t> offsets;
  for (uint32_t key = 0; key < cuda::kIndexUnitKeys; ++key) {
    for (uint32_t chunk = 0; chunk < 8; ++chunk) offsets.insert(cuda::index_key_offset(key, chunk));
  }
  EXPECT_EQ(offsets.size(), 256U);
  EXPECT_EQ(*offsets.rbegin(), 4096U - 16);
  for (uint32_t key = 0; key < cuda::kIndexUnitKeys; key += 2) {
    for (uint32_t half : {0, 4}) {
      std::set<uint32_t> banks;
      for (uint32_t lane = 0; lane < 8; ++lane)
        banks.insert(cuda::index_key_offset(key + lane / 4, half + lane % 4) % 128);
      EXPECT_EQ(banks.size(), 8U) << key << ", " << half;
    }
  }
}

TEST(IndexSelectPlan, EveryLaneOfAWarpHasTheScoreOfAnotherKey) {
  std::set<int> keys;
  for (int lane = 0; lane < 32; ++lane) keys.insert(cuda::key_of_lane(lane));
  EXPECT_EQ(keys.size(), 32U);
  EXPECT_EQ(*keys.begin(), 0);
  EXPECT_EQ(*keys.rbegin(), 31);
}

TEST(IndexSelectPlan, SortableScoresHaveTheOrderOfNumbersWithNanBelowAll) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const auto sortable = [](float score) { return cuda::sortable_score(std::bit_cast<uint32_t>(score)); };
  const std::vector<float> ascending = {-kInf,  -3e38F, -1.0F, -1e-30F, -1e-45F, 0.0F,
                                        1e-45F, 1e-30F, 0.5F,  1.0F,    3e38F,   kInf};
  for (size_t i = 1; i < ascending.size(); ++i)
    EXPECT_LT(sortable(ascending[i - 1]), sortable(ascending[i])) << ascending[i];
  EXPECT_EQ(sortable(-0.0F), sortable(0.0F));
  EXPECT_EQ(sortable(kNan), 0U);
  EXPECT_EQ(sortable(-kNan), 0U);
  EXPECT_GT(sortable(-kInf), 0U);
}

TEST(IndexSelectPlan, DigitsAreTheWholeScore) {
  for (uint32_t score : {0U, 1U, 0x80000000U, 0xffffffffU, 0xdeadbeefU, 0x12345678U}) {
    uint32_t joined = 0;
    for (int digit = 0; digit < cuda::kScoreDigits; ++digit) {
      EXPECT_TRUE(cuda::above_digits_equal(score, joined, digit));
      EXPECT_LT(cuda::score_digit(score, digit), static_cast<uint32_t>(cuda::kScoreBins));
      joined |= cuda::score_digit(score, digit) << cuda::digit_shift(digit);
    }
    EXPECT_EQ(joined, score);
  }
  EXPECT_FALSE(cuda::above_digits_equal(0x00200000U, 0, 1));
  EXPECT_TRUE(cuda::above_digits_equal(0x001fffffU, 0, 1));
  EXPECT_FALSE(cuda::above_digits_equal(0x00000400U, 0, 2));
  EXPECT_TRUE(cuda::above_digits_equal(0x000003ffU, 0, 2));
}

TEST(IndexSelectPlan, SlicesCoverARowInWholeWordsOfBits) {
  for (int64_t extent : {1, 63, 64, 65, 129, 511, 513, 2049, 163840, 163841}) {
    for (int blocks : {1, 2, 4, 8}) {
      EXPECT_EQ(cuda::slice_begin(extent, 0, blocks), 0);
      EXPECT_EQ(cuda::slice_begin(extent, blocks, blocks), extent);
      for (int rank = 0; rank < blocks; ++rank) {
        const int64_t begin = cuda::slice_begin(extent, rank, blocks);
        EXPECT_LE(begin, cuda::slice_begin(extent, rank + 1, blocks));
        EXPECT_TRUE(begin % 64 == 0 || begin == extent);
      }
    }
  }
}

TEST(IndexSelectPlan, BlocksKeepTheScoresForWhichThereIsMemory) {
  // A row of 65,000 positions has 8,125 to 8,128 in each of eight slices.
  EXPECT_EQ(cuda::index_kept_scores(65024, 1, 8, 132), 4 * cuda::kIndexKeptTile);
  EXPECT_EQ(cuda::index_kept_scores(64, 1, 8, 132), cuda::kIndexKeptTile);
  // With four blocks on a multiprocessor there is no memory beside a block that scores.
  EXPECT_EQ(cuda::index_kept_scores(163840, 64, 8, 132), 0);
  for (const int64_t stride : {64, 4096, 163840, 1 << 20}) {
    for (const int rows : {1, 16, 17, 40, 66, 512}) {
      for (const int cluster : {1, 2, 8}) {
        const int kept = cuda::index_kept_scores(stride, rows, cluster, 132);
        EXPECT_EQ(kept % cuda::kIndexKeptTile, 0);
        EXPECT_LT(kept, cuda::slice_begin(stride, 1, cluster) + cuda::kIndexKeptTile);
        const int blocks = (rows * cluster + 131) / 132;
        if (kept > 0) {
          EXPECT_LE(blocks * (kept * 4 + cuda::kIndexChooseBytes + 1024) + cuda::kIndexScoreBytes,
                    cuda::kIndexSharedBytes);
        }
      }
    }
  }
}

}  // namespace
}  // namespace hadal::testing
