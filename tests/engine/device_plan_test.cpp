// Tests what the host plans for a GPU: graph buckets, the layout of a step's inputs, and memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "engine/backend.h"
#include "engine/cuda/graph_buckets.h"
#include "engine/cuda/memory_plan.h"
#include "engine/cuda/step_layout.h"
#include "engine/cuda/table_mirror.h"
#include "engine/speculation/speculation_policy.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/padding.h"
#include "kernels/cuda/sampling/sampling.h"
#include "kernels/params/kv_layout.h"

namespace hadal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GraphBuckets, AreDenseWhereBatchesAreSmallAndEndAtTheLargest) {
  EXPECT_THAT(graph_buckets({}, 1).value(), ElementsAre(1));
  EXPECT_THAT(graph_buckets({.graph_max_bs = 33}, 64).value(), ElementsAre(1, 2, 4, 8, 12, 16, 24, 32, 33));
  EXPECT_EQ(graph_buckets({}, 1000).value().back(), 1000) << "every batch that may run has a graph";
  EXPECT_EQ(graph_buckets({.graph_max_bs = 1000}, 64).value().back(), 64) << "no step has more rows";
  const std::vector<int64_t> many = graph_buckets({.graph_max_bs = 600}, 1000).value();
  EXPECT_THAT(many, ::testing::IsSupersetOf({240, 248, 256, 272, 512, 544, 600}));
  EXPECT_TRUE(std::is_sorted(many.begin(), many.end()));
}

TEST(GraphBuckets, NoneExceedsTheLimitOfGraphTokens) {
  EXPECT_EQ(graph_buckets({}, 16'384).value().back(), cuda::kMostGraphTokens);
  EXPECT_EQ(graph_buckets({.graph_max_bs = 5000}, 16'384).value().back(), cuda::kMostGraphTokens);
  EXPECT_THAT(graph_buckets({.graph_bs = {8, cuda::kMostGraphTokens}}, 16'384).value(), ElementsAre(8, 4096));
  const Status refused = graph_buckets({.graph_bs = {8, 4097}}, 16'384).status();
  EXPECT_EQ(refused.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message, "--cuda-graph-bs contains 4097; allowed: 1 to 4096");
  EXPECT_EQ(kMostDefaultRequests, cuda::kMostGraphTokens) << "every batch that runs by default has a graph";
  // A batch that no graph holds runs with the kernels of its exact size.
  EXPECT_EQ(cuda::finely_padded_tokens(4096), 4096);
  EXPECT_EQ(cuda::finely_padded_tokens(4500), 4500);
}

TEST(GraphBuckets, PadABatchByAnEighthAtMost) {
  const std::vector<GraphShape> shapes = graph_shapes(graph_buckets({}, 4096).value(), {}, false);
  EXPECT_LE(shapes.size(), 150U) << "each is captured at the start";
  for (int64_t rows = 32; rows <= 4096; ++rows) {
    const int64_t padding = choose_shape(shapes, rows, 1, false, true).items - rows;
    EXPECT_LT(padding, std::max<int64_t>(8, rows / 8)) << rows;
  }
}

TEST(GraphShapes, AreTheBucketsWithoutSpeculation) {
  const std::vector<int64_t> buckets = graph_buckets({}, 4096).value();
  const std::vector<GraphShape> shapes = graph_shapes(buckets, {}, false);
  ASSERT_EQ(shapes.size(), buckets.size());
  for (size_t i = 0; i < shapes.size(); ++i) EXPECT_EQ(shapes[i], (GraphShape{buckets[i], 1}));
}

TEST(GraphShapes, HaveEveryNarrowWidthAndAFewWideOnes) {
  const auto widths_of = [](int64_t width, bool adapts) {
    std::set<int64_t> widths;
    for (const GraphShape& shape :
         graph_shapes({1, 2, 4}, {.speculation_width = width, .speculation_adapts = adapts}, false))
      widths.insert(shape.width);
    return widths;
  };
  EXPECT_THAT(widths_of(4, true), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(widths_of(4, false), ElementsAre(4)) << "a fixed width";
  EXPECT_THAT(widths_of(14, true), ElementsAre(1, 2, 3, 4, 6, 8, 12, 14));
  EXPECT_THAT(widths_of(64, true), ElementsAre(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64));
}

TEST(GraphShapes, PadAStepOfVerificationsByAtMostHalf) {
  const std::vector<int64_t> buckets = graph_buckets({}, 4096).value();
  for (const int64_t greatest : {2, 4, 64}) {
    const std::vector<GraphShape> shapes =
        graph_shapes(buckets, {.speculation_width = greatest, .speculation_adapts = true}, false);
    EXPECT_LE(shapes.size(), 160U) << "each is captured at the start";
    for (int64_t width = 1; width <= std::min<int64_t>(greatest, 4); ++width) {
      for (int64_t items = 1; items * width <= kMaxVerifiedRows; ++items) {
        const GraphShape shape = choose_shape(shapes, items, width, false, true);
        // The last few values of `items` may be more than the largest bucket that has at most
        // kMaxVerifiedRows rows.
        if (shape.items == 0 && items * width * 9 > kMaxVerifiedRows * 8) continue;
        ASSERT_GE(shape.items, items) << width;
        EXPECT_EQ(shape.width, width);
        EXPECT_LE(shape.rows(), kMaxVerifiedRows);
        EXPECT_LE(shape.items - items, std::max<int64_t>(3, items / 2)) << items;
      }
    }
  }
}

TEST(GraphShapes, TheNarrowestThatFitsIsChosen) {
  const std::vector<GraphShape> shapes = {{1, 2}, {2, 2}, {1, 4}, {2, 4}};
  EXPECT_EQ(choose_shape(shapes, 1, 1, false, true), (GraphShape{1, 2}));
  EXPECT_EQ(choose_shape(shapes, 2, 3, false, true), (GraphShape{2, 4}));
  EXPECT_EQ(choose_shape(shapes, 2, 3, false, false).items, 0);
  EXPECT_EQ(choose_shape(shapes, 2, 4, false, false), (GraphShape{2, 4}));
  EXPECT_EQ(choose_shape(shapes, 3, 1, false, true).items, 0);
  EXPECT_EQ(choose_shape(shapes, 1, 5, false, true).items, 0);
}

TEST(GraphShapes, WithAnIndexerAllShapesSelectAndSmallOnesAlsoExistWithoutSelection) {
  const std::vector<int64_t> buckets = graph_buckets({}, 4096).value();
  for (const EngineOptions& options :
       {EngineOptions{}, EngineOptions{.speculation_width = 4, .speculation_adapts = true}}) {
    const std::vector<GraphShape> plain = graph_shapes(buckets, options, false);
    const std::vector<GraphShape> shapes = graph_shapes(buckets, options, true);
    EXPECT_LE(shapes.size() * 10, plain.size() * 14) << "each is captured at the start";
    for (const GraphShape& size : plain) {
      const bool is_small = size.rows() <= kMostRowsWithoutSelecting;
      for (const bool selects : {false, true}) {
        const GraphShape chosen = choose_shape(shapes, size.items, size.width, selects, true);
        EXPECT_EQ(chosen, (GraphShape{size.items, size.width, selects || !is_small}));
      }
    }
  }
}

TEST(RunningRequests, FollowTheCacheByDefault) {
  EXPECT_EQ(default_running_requests(3'400'000, 163'840), 4096) << "clamped from above";
  EXPECT_EQ(default_running_requests(400'000, 163'840), 2048) << "clamped from below";
  EXPECT_EQ(default_running_requests(1'000'000, 163'840), 3125);
  EXPECT_EQ(default_running_requests(1'024, 163'840), 16) << "at least a page per request";
  EXPECT_EQ(default_running_requests(0, 163'840), 1);
}

TEST(RunningRequests, MoreThanTheKernelsPlanForAreRefusedByTheFlagsName) {
  EXPECT_TRUE(check_gpu_batch("--max-running-requests", 0).ok());
  EXPECT_TRUE(check_gpu_batch("--max-running-requests", 16'384).ok());
  for (const int64_t requests : {16'385, 65'536}) {
    const Status refused = check_gpu_batch("--max-running-requests", requests).status();
    EXPECT_EQ(refused.code, StatusCode::kInvalidArgument);
    EXPECT_EQ(refused.message,
              fmt::format("--max-running-requests {}: must be at most 16384 on a GPU", requests));
  }
}

TEST(RunningRequests, AreLoweredUntilTheirStateFits) {
  const auto at_bytes_each = [](int64_t bytes) {
    return most_requests_by_state(4096, [=](int64_t requests) { return 10'000'000 + requests * bytes; });
  };
  EXPECT_EQ(at_bytes_each(800'000), 1237);
  EXPECT_EQ(at_bytes_each(1), 4096);
  EXPECT_EQ(at_bytes_each(2'000'000'000), 1) << "one request runs, however large its state";
}

// The state, graphs and workspace of many requests would leave no cache, which would make the default 1.
TEST(RunningRequests, LeaveTheCacheThatTheyNeed) {
  constexpr int64_t kTokenBytes = 70'000;
  constexpr int64_t kRequestBytes = 3'000'000;
  const auto tokens_of = [=](int64_t cache_bytes) {
    return [=](int64_t requests) {
      DeviceMemoryPlan plan{.total_bytes = 10'000'000'000, .fraction = 1.0, .weight_bytes = 9'000'000'000};
      plan.workspace_bytes = 1'000'000'000 - cache_bytes;
      plan.state_bytes = requests * kRequestBytes;
      plan.fill_cache(kTokenBytes);
      return plan.max_total_tokens;
    };
  };
  const auto tight = tokens_of(480'000'000);
  EXPECT_EQ(tight(4096), 0);
  const int64_t chosen = most_requests_by_cache(4096, 163'840, tight);
  EXPECT_GE(default_running_requests(tight(chosen), 163'840), chosen);
  EXPECT_LT(default_running_requests(tight(chosen + 1), 163'840), chosen + 1);
  EXPECT_EQ(chosen, 64);
  EXPECT_EQ(most_requests_by_cache(4096, 163'840, tokens_of(0)), 1) << "no cache at all";
  EXPECT_EQ(most_requests_by_cache(4096, 163'840, [](int64_t) { return 1'000'000; }), 3125);
  EXPECT_EQ(most_requests_by_cache(1237, 163'840, [](int64_t) { return 1'000'000; }), 1237);
}

TEST(GraphBuckets, FollowTheList) {
  EXPECT_THAT(graph_buckets({.graph_bs = {8, 2, 8, 100}}, 16).value(), ElementsAre(2, 8));
  EXPECT_TRUE(graph_buckets({.use_graphs = false}, 16).value().empty());
  EXPECT_THAT(graph_buckets({.graph_bs = {4, 0}}, 16).status().message,
              HasSubstr("cuda-graph-bs contains 0"));
}

TEST(GraphShapes, TheSmallestThatHoldsTheBatchIsChosen) {
  const std::vector<GraphShape> shapes = graph_shapes({1, 2, 4, 8}, {}, false);
  const auto chosen = [&](int64_t rows, bool pad) { return choose_shape(shapes, rows, 1, false, pad).items; };
  EXPECT_EQ(chosen(3, true), 4);
  EXPECT_EQ(chosen(4, true), 4);
  EXPECT_EQ(chosen(9, true), 0) << "there is none";
  EXPECT_EQ(chosen(3, false), 0);
  EXPECT_EQ(chosen(8, false), 8);
  EXPECT_EQ(choose_shape({}, 1, 1, false, true).items, 0);
}

TEST(StepLayout, ArraysAreDisjointAndAligned) {
  const StepSizes sizes{.tokens = 7,
                        .decode_rows = 3,
                        .logit_rows = 5,
                        .feeds = 2,
                        .samples = 3,
                        .constrained = 1,
                        .page_updates = 2,
                        .scores = 4,
                        .key_runs = 3,
                        .segment_runs = 5,
                        .absorbed_rows = 16,
                        .absorbed_groups = 2,
                        .selecting_rows = 5,
                        .copies = 1};
  const StepLayout at = layout_step(sizes);
  struct Range {
    size_t begin, bytes;
  };
  std::vector<Range> ranges = {{at.num_valid, 4},
                               {at.token_ids, 28},
                               {at.positions, 28},
                               {at.slots, 56},
                               {at.decode_seq_idx, 12},
                               {at.decode_kv_len, 12},
                               {at.logit_rows, 20},
                               {at.feed_rows, 8},
                               {at.feed_slots, 8},
                               {at.samples, 3 * sizeof(cuda::SampleRow)},
                               {at.constrained, sizeof(cuda::SampleRow)},
                               {at.page_places, 8},
                               {at.page_idx, 8},
                               {at.page_values, 8},
                               {at.score_rows, 16},
                               {at.score_ids, 16},
                               {at.score_top, 16},
                               {at.key_runs, 48},
                               {at.segment_runs, 120},
                               {at.absorbed_rows, 64},
                               {at.absorbed_seq_idx, 8},
                               {at.absorbed_kv_len, 8},
                               {at.selecting_seq_idx, 20},
                               {at.selecting_kv_len, 20},
                               {at.copies, sizeof(cuda::PageCopyEntry)}};
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < ranges.size(); ++i) {
    EXPECT_EQ(ranges[i].begin % 16, 0U);
    EXPECT_LE(ranges[i].begin + ranges[i].bytes, i + 1 < ranges.size() ? ranges[i + 1].begin : at.bytes);
  }
}

// A graph reads from the addresses at which it was captured, however many pages the step copies first.
TEST(StepLayout, CopiesMoveNoOtherArray) {
  const StepLayout without = layout_step(StepSizes::decode(24, 0));
  const StepLayout with = layout_step(StepSizes::decode(24, 9));
  EXPECT_EQ(without.samples, with.samples);
  EXPECT_EQ(without.constrained, with.constrained);
  EXPECT_EQ(without.copies, with.copies);
  EXPECT_LT(without.bytes, with.bytes);
}

// Returns decode rows of sequences whose pages are 10·sequence, 10·sequence + 1, …; each token is (position,
// sequence).
ForwardBatch decode_batch(const std::vector<std::pair<int32_t, int32_t>>& tokens) {
  ForwardBatch batch;
  batch.page_table_stride = 4;
  for (int32_t sequence = 0; sequence < 3; ++sequence) {
    for (int32_t page = 0; page < 4; ++page) batch.page_table.push_back(10 * sequence + page);
  }
  for (const auto& [position, sequence] : tokens) {
    batch.token_ids.push_back(7);
    batch.positions.push_back(position);
    batch.slots.push_back((10 * sequence + position / kPageSize) * kPageSize + position % kPageSize);
    batch.decode_seq_idx.push_back(sequence);
    batch.decode_kv_len.push_back(position + 1);
  }
  return batch;
}

TEST(DecodeSettled, IsTrueOnlyIfEachRowsNewKeyIsItsOwn) {
  EXPECT_TRUE(decode_settled({}));
  EXPECT_TRUE(decode_settled(decode_batch({{5, 0}, {6, 1}, {64, 2}})));
  EXPECT_TRUE(decode_settled(decode_batch({{0, 0}, {0, 1}})));
  EXPECT_FALSE(decode_settled(decode_batch({{5, 1}, {6, 1}}))) << "two tokens of one request";
  EXPECT_FALSE(decode_settled(decode_batch({{9, 0}, {63, 2}, {64, 2}}))) << "two tokens across a page border";
  // One prefix is in two tables: the second row's key is the first row's token.
  ForwardBatch shared = decode_batch({{30, 0}, {31, 1}});
  shared.page_table[4] = shared.page_table[0];
  EXPECT_FALSE(decode_settled(shared));
  ForwardBatch mixed = decode_batch({{5, 0}});
  mixed.num_prefill_tokens = 1;
  EXPECT_FALSE(decode_settled(mixed));
}

// A device that is updated as the mirror says has every sequence's pages, whichever sequence used its row
// before.
TEST(TableMirror, TheDeviceHasEveryPageOfEverySequence) {
  constexpr int64_t kRows = 5;
  constexpr int64_t kStride = 9;
  std::mt19937 random(3);
  TableMirror mirror(kRows, kStride);
  std::vector<int32_t> device(kRows * kStride, -7);
  int num_whole = 0;
  int num_updates = 0;
  std::vector<std::vector<int32_t>> sequences(kRows);
  for (int step = 0; step < 2000; ++step) {
    for (auto& pages : sequences) {
      if (random() % 8 == 0 && pages.size() < kStride) pages.push_back(static_cast<int32_t>(random() % 50));
      if (random() % 60 == 0) pages.resize(random() % 3);
    }
    if (random() % 50 == 0) {  // a step has failed: the device's contents are unknown
      for (int32_t& page : device) {
        if (random() % 2 == 0) page = -7;
      }
      mirror.forget();
    }
    const size_t num_rows = random() % (kRows + 1);
    size_t stride = 1;
    for (size_t row = 0; row < num_rows; ++row) stride = std::max(stride, sequences[row].size());
    std::vector<int32_t> tables(num_rows * stride, -1);
    for (size_t row = 0; row < num_rows; ++row) {
      std::copy(sequences[row].begin(), sequences[row].end(),
                tables.begin() + static_cast<int64_t>(row * stride));
    }
    if (mirror.update(tables, static_cast<int64_t>(stride), 2)) {
      ASSERT_LE(mirror.places().size(), 2U);
      for (size_t i = 0; i < mirror.places().size(); ++i) device[mirror.places()[i]] = mirror.values()[i];
      num_updates += mirror.places().empty() ? 0 : 1;
    } else {
      ++num_whole;
      for (size_t row = 0; row < num_rows; ++row) {
        std::copy_n(tables.begin() + static_cast<int64_t>(row * stride), stride,
                    device.begin() + static_cast<int64_t>(row) * kStride);
      }
    }
    for (size_t row = 0; row < num_rows; ++row) {
      for (size_t i = 0; i < sequences[row].size(); ++i) {
        ASSERT_EQ(device[row * kStride + i], sequences[row][i])
            << "step " << step << " row " << row << " page " << i;
      }
    }
  }
  EXPECT_GT(num_whole, 20);
  EXPECT_GT(num_updates, 100);
}

DeviceMemoryPlan plan_of_100_gb() {
  DeviceMemoryPlan plan;
  plan.total_bytes = 100'000'000'000;
  plan.fraction = 0.5;
  plan.weight_bytes = 30'000'000'000;
  plan.context_bytes = 1'000'000'000;
  plan.workspace_bytes = 2'000'000'000;
  plan.state_bytes = 500'000'000;
  plan.graph_bytes = 500'000'000;
  return plan;
}

TEST(MemoryPlan, TheCacheGetsTheWholePagesThatAreLeft) {
  DeviceMemoryPlan plan = plan_of_100_gb();
  plan.fill_cache(1000);
  EXPECT_EQ(plan.kv_bytes, 16'000'000'000);
  EXPECT_EQ(plan.max_total_tokens, 16'000'000);
  plan.fill_cache(1'000'000);
  EXPECT_EQ(plan.max_total_tokens, 16'000 / kPageSize * kPageSize);
}

TEST(MemoryPlan, SaysWhatIsMissingAndWhichFlagHelps) {
  DeviceMemoryPlan plan = plan_of_100_gb();
  plan.fill_cache(1000);
  EXPECT_TRUE(check_cache_fits(plan, 1000, 0).ok());
  EXPECT_TRUE(check_cache_fits(plan, 1000, 16'000'000).ok());
  const auto too_long = check_cache_fits(plan, 1000, 16'000'001);
  EXPECT_EQ(too_long.status().code, StatusCode::kResourceExhausted);
  EXPECT_THAT(too_long.status().message, HasSubstr("lower --max-total-tokens"));
  plan.weight_bytes = 60'000'000'000;
  plan.fill_cache(1000);
  EXPECT_EQ(plan.kv_bytes, 0);
  const auto nothing = check_cache_fits(plan, 1000, 0);
  EXPECT_THAT(nothing.status().message, HasSubstr("raise --mem-fraction-static"));
  EXPECT_THAT(nothing.status().message, HasSubstr("weights 60.00"));
}

std::string ranks_error(int64_t tp, GpuRanks gpus, int num_gpus) {
  const auto checked = check_ranks(DeviceType::kCuda, {.tp = tp}, gpus, num_gpus);
  return checked.ok() ? "" : checked.status().message;
}

TEST(CheckRanks, EveryRankNeedsAGpuThatIsThere) {
  EXPECT_EQ(ranks_error(1, {}, 1), "");
  EXPECT_EQ(ranks_error(8, {}, 8), "");
  EXPECT_EQ(ranks_error(4, {.base_gpu_id = 4}, 8), "");
  EXPECT_EQ(ranks_error(4, {.gpu_id_step = 2}, 7), "");
  EXPECT_EQ(
      ranks_error(2, {}, 1),
      "--tp-size 2: with --base-gpu-id 0 and --gpu-id-step 1 the last rank needs GPU 1, but there are 1 "
      "GPUs; allowed: at most 1 ranks, or --gpu-id-step 0, with which ranks take turns on one GPU");
  EXPECT_THAT(ranks_error(4, {.base_gpu_id = 2, .gpu_id_step = 3}, 8), HasSubstr("allowed: at most 2 ranks"));
  EXPECT_EQ(ranks_error(1, {.base_gpu_id = 2}, 2), "--base-gpu-id 2: there are 2 GPUs; allowed: 0 to 1");
  EXPECT_EQ(ranks_error(16, {}, 32), "--tp-size 16: on GPUs it must be at most 8");
}

TEST(CheckRanks, RanksThatTakeTurnsNeedOneGpu) {
  EXPECT_EQ(ranks_error(8, {.gpu_id_step = 0}, 1), "");
  EXPECT_NE(ranks_error(16, {.gpu_id_step = 0}, 1), "");
}

TEST(CheckRanks, ALoneRankNeedsOneGpuAndIsOneOfTheRanks) {
  EXPECT_EQ(ranks_error(8, {.lone_rank = 7}, 1), "");
  EXPECT_EQ(ranks_error(8, {.lone_rank = 8}, 1), "--lone-rank 8: --tp-size is 8; allowed: 0 to 7");
}

TEST(CheckRanks, TheCpuHasRoomForAnyNumber) {
  EXPECT_TRUE(check_ranks(DeviceType::kCpu, {.tp = 64}, {}, 0).ok());
}

}  // namespace
}  // namespace hadal
