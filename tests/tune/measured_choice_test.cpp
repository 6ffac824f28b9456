// Tests which measured choice is used for a given number of rows, also for padded batches and for numbers of
// rows far from every measured one.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/experts/choice.h"
#include "kernels/cuda/gemm/choice.h"
#include "tests/tune/graph_sizes.h"
#include "tune/tuner.h"

namespace hadal::cuda {
namespace {

TEST(MeasuredChoice, TheNextMeasuredNumberOfRowsThatFitsDecides) {
  LinearTable table;
  LinearShape shape{.type = WeightType::kFp8Block, .m = 8, .n = 4096, .k = 7168};
  const LinearChoice eight = parse_choice("skinny 8x64 splits 8 stages 6").value();
  const LinearChoice wide = parse_choice("skinny 64x64 stages 3").value();
  const LinearChoice tiled = choice_of(LinearTile::k128x192);
  table.set(shape.type, shape.n, shape.k, 8, eight);
  table.set(shape.type, shape.n, shape.k, 24, wide);
  table.set(shape.type, shape.n, shape.k, 256, tiled);
  const auto at = [&](int64_t m) {
    shape.m = m;
    return choose(shape, &table);
  };
  EXPECT_EQ(at(4), eight);
  EXPECT_EQ(at(8), eight);
  EXPECT_EQ(at(9), wide) << "8 is nearer, but serves what is padded to it";
  EXPECT_EQ(at(24), wide);
  EXPECT_EQ(at(31), wide) << "256 is more than eight times as far";
  EXPECT_EQ(at(32), tiled);
  EXPECT_EQ(at(512), tiled);
  EXPECT_EQ(choose(shape, nullptr), heuristic(shape));
  shape.n = 4096 + 128;
  shape.m = 8;
  EXPECT_EQ(choose(shape, &table), heuristic(shape)) << "another shape";
  EXPECT_EQ(table.num_shapes(), 1);

  // A choice that does not support the number of rows is skipped.
  LinearTable misfit;
  shape = {.type = WeightType::kFp8Block, .m = 12, .n = 4096, .k = 7168};
  misfit.set(shape.type, shape.n, shape.k, 10, wide);
  misfit.set(shape.type, shape.n, shape.k, 14, eight);
  EXPECT_EQ(choose(shape, &misfit), wide);
  misfit.set(shape.type, shape.n, shape.k, 40, tiled);
  EXPECT_EQ(choose(shape, &misfit), tiled) << "the next larger one first";
  // An unaligned matrix has no tuned kernel, whatever was measured.
  shape.aligned = false;
  EXPECT_EQ(choose(shape, &misfit).kernel, ProductKernel::kReference);
}

// A batch that is padded to a graph's size gets the kernels that it gets without padding, whatever was
// measured: no two of these sizes have the same choice.
TEST(MeasuredChoice, MeasuredChoicesDoNotDependOnPadding) {
  const LinearShape dense{.type = WeightType::kFp8Block, .n = 4096, .k = 7168};
  const std::vector<LinearChoice> small = valid_choices({.type = dense.type, .m = 64, .n = 4096, .k = 7168});
  for (const double rows_per_token : {1.0, 8.0, 9.0, 2.5}) {
    const auto rows = [&](int64_t tokens) { return static_cast<int64_t>(rows_per_token * double(tokens)); };
    ChoicesByRows choices;
    int next = 0;
    for (const int64_t batch : kTunedBatches)
      choices.set(rows(batch), small.at(static_cast<size_t>(next++)), batch >= kLargestMeasuredBatch);
    const auto of = [&](int64_t m) { return choices.for_rows(rows(m), [](const Choice&) { return true; }); };
    for (const int64_t largest : {512, 1469, 4096}) {
      const testing::GraphSizes graphs(largest);
      for (int64_t tokens = 1; tokens <= largest; ++tokens) {
        const auto unpadded = of(tokens);
        ASSERT_TRUE(unpadded.has_value());
        EXPECT_EQ(unpadded, of(graphs.padded(tokens))) << tokens << " of " << largest;
      }
    }
  }
}

// A table of few sizes does not apply to sizes far from them.
TEST(MeasuredChoice, WhatIsFarFromEveryMeasurementIsLeftToTheHeuristic) {
  LinearShape shape{.type = WeightType::kBF16, .n = 256, .k = 7168};
  const LinearChoice router{.kernel = ProductKernel::kRouter};
  const LinearChoice streamed = parse_choice("skinny 16x64 splits 8 stages 3").value();
  const LinearChoice library{.kernel = ProductKernel::kLibrary};
  const auto found = [&](const LinearTable& table, int64_t m) {
    shape.m = m;
    return table.find(shape);
  };
  LinearTable one;
  one.set(shape.type, shape.n, shape.k, 12, router);
  for (const int64_t m : {6, 12, 24}) EXPECT_EQ(found(one, m), router) << m;
  for (const int64_t m : {1, 5, 25, 8192}) {
    EXPECT_EQ(found(one, m), std::nullopt) << m;
    EXPECT_EQ(choose(shape, &one), heuristic(shape)) << m;
  }
  ASSERT_NE(heuristic(shape), router) << "of 8192 rows";

  LinearTable three;
  three.set(shape.type, shape.n, shape.k, 2, router);
  three.set(shape.type, shape.n, shape.k, 14, streamed);
  three.set(shape.type, shape.n, shape.k, 1000, library);
  EXPECT_EQ(found(three, 8), streamed) << "between two measured sizes";
  EXPECT_EQ(found(three, 16), streamed);
  EXPECT_EQ(found(three, 17), std::nullopt) << "the tile of 16 does not take it; 1000 is too far";
  EXPECT_EQ(found(three, 900), library);
  EXPECT_EQ(found(three, 124), std::nullopt);
  EXPECT_EQ(found(three, 125), library);
  EXPECT_EQ(found(three, 2001), std::nullopt);
  LinearTable streamed_only;
  streamed_only.set(shape.type, shape.n, shape.k, 1, router);
  streamed_only.set(shape.type, shape.n, shape.k, 14, streamed);
  EXPECT_EQ(found(streamed_only, 17), std::nullopt) << "and 1 is too far";

  // The largest of the standard sizes serves everything above it.
  one.set(shape.type, shape.n, shape.k, kLargestMeasuredBatch - 1, library);
  EXPECT_EQ(found(one, 100000), std::nullopt);
  one.set(shape.type, shape.n, shape.k, kLargestMeasuredBatch, library);
  EXPECT_EQ(found(one, 100000), library);

  GroupedShape experts{.type = WeightType::kFp8Block, .num_experts = 8, .n = 512, .k = 7168};
  GroupedTable grouped;
  grouped.set(experts.type, experts.num_experts, experts.n, experts.k, 8192,
              grouped_tile(GroupedTile::k256x128));
  experts.num_rows = 16385;
  EXPECT_EQ(grouped.find(experts), std::nullopt) << "8,192 rows of fewer tokens";
  EXPECT_EQ(choose(experts, &grouped), heuristic(experts));
  experts.num_rows = 4000;
  EXPECT_FALSE(grouped.find(experts).has_value());
  EXPECT_EQ(wants_sorted(experts, &grouped), heuristic_wants_sorted(4000, 8, experts.type));
  grouped.set(experts.type, experts.num_experts, experts.n, experts.k, 8192,
              grouped_tile(GroupedTile::k256x128), true);
  experts.num_rows = 16385;
  EXPECT_EQ(grouped.find(experts), grouped_tile(GroupedTile::k256x128));
}

TEST(MeasuredChoice, MeasuredChoicesOfExpertsDecideWhetherRowsAreSorted) {
  GroupedTable table;
  GroupedShape shape{.type = WeightType::kFp8Block, .num_rows = 72, .num_experts = 257, .n = 512, .k = 7168};
  EXPECT_FALSE(wants_sorted(shape, nullptr));
  EXPECT_FALSE(wants_sorted(shape, &table));
  table.set(shape.type, shape.num_experts, shape.n, shape.k, 72, grouped_tile(GroupedTile::k128x128));
  EXPECT_TRUE(wants_sorted(shape, &table));
  EXPECT_EQ(choose(shape, &table), grouped_tile(GroupedTile::k128x128));
  shape.gathered = true;
  EXPECT_TRUE(wants_sorted(shape, &table)) << "asked before the rows are sorted";
  EXPECT_EQ(choose(shape, &table), heuristic(shape)) << "the tiled kernel gathers nothing";
}

}  // namespace
}  // namespace hadal::cuda
