// Tests that speculation with draft trees changes no token and no bit of a log-probability. The engine
// without speculation is the oracle, over the mixes of overlap_test, for several shapes, both loops and tiny
// pools.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>

#include "engine/backend.h"
#include "engine/cpu/cpu_executor.h"
#include "engine/cpu/rank_runner.h"
#include "tests/engine/guessable_model.h"
#include "tests/engine/recorded_plans.h"
#include "tests/engine/request_mix.h"
#include "tests/engine/small_model.h"

namespace hadal {
namespace {

using testing::CheckedEngine;
using testing::expect_beginnings;
using testing::expect_same_mix;
using testing::Finished;
using testing::greedy_request;
using testing::GuessableModel;
using ::testing::HasSubstr;
using testing::kNumRequests;
using testing::MixResult;
using testing::random_prompt;

constexpr int64_t kSmallPool = 64 * 7;
constexpr int kSomeRequests = kNumRequests / 2;
constexpr double kWaitsForMasks = std::numeric_limits<double>::infinity();

struct TreeShape {
  DraftShape shape;
  int64_t width = 0;
};
constexpr TreeShape kUsual{{.num_steps = 3, .topk = 4}, 8};

EngineOptions with_tree(EngineOptions options, const TreeShape& tree) {
  options.speculation_width = tree.width;
  options.draft_shape = tree.shape;
  options.mask_wait_share = kWaitsForMasks;
  return options;
}

class DraftTreeTest : public ::testing::Test {
 protected:
  CheckedEngine make_engine(EngineOptions options) {
    options.decode_log_interval = 0;
    if (options.max_total_tokens == 0) options.max_total_tokens = 16384;
    return CheckedEngine(Engine::create(model_, pool_, options).value());
  }
  MixResult run_mix(uint64_t seed, EngineOptions options, bool with_aborts = false) {
    const std::chrono::milliseconds mask_delay(options.mask_wait_share == 0.0 ? 2 : 0);
    const testing::RecordedPlans plans;
    options.record_plans = plans.path();
    MixResult result = testing::run_mix(make_engine(options), seed, with_aborts, kSomeRequests, mask_delay);
    result.num_late_masks = plans.count("\"call\":\"defer\"");
    return result;
  }

  ThreadPool pool_{2};
  GuessableModel model_{testing::make_small_model("v3+nextn", pool_)};
};

TEST_F(DraftTreeTest, EveryShapeAndBothLoopsGiveTheSameBits) {
  EngineOptions options{.max_total_tokens = 16384, .max_running_requests = 32, .chunked_prefill_size = 96};
  options.overlap_schedule = false;
  const MixResult oracle = run_mix(1, options);
  for (const TreeShape& tree : {kUsual, TreeShape{{2, 2}, 7}, TreeShape{{5, 8}, 64}, TreeShape{{1, 3}, 4}}) {
    for (const bool overlap : {false, true}) {
      if (tree.width != kUsual.width && !overlap) continue;
      SCOPED_TRACE(::testing::Message() << "width " << tree.width << " overlap " << overlap);
      EngineOptions speculates = with_tree(options, tree);
      speculates.overlap_schedule = overlap;
      const MixResult speculated = run_mix(1, speculates);
      expect_same_mix(oracle, speculated);
      const SpeculationCounts& counts = speculated.stats.speculation;
      EXPECT_GT(counts.accepted, counts.verifications / 4);
      EXPECT_LE(counts.accepted, counts.verifications * tree.shape.num_steps);
      EXPECT_LE(counts.drafts, counts.verifications * (tree.width - 1));
    }
  }
}

TEST_F(DraftTreeTest, RetractionTheCacheAndLateMasksChangeNothing) {
  EngineOptions options{.max_total_tokens = 16384, .max_running_requests = 32};
  options.overlap_schedule = false;
  options.enable_radix_cache = false;
  const MixResult oracle = run_mix(5, options);
  options.max_total_tokens = kSmallPool;
  options.schedule_conservativeness = 0.05;  // admits too many on purpose
  options = with_tree(options, kUsual);
  for (const bool overlap : {false, true}) {
    SCOPED_TRACE(::testing::Message() << "overlap " << overlap);
    options.overlap_schedule = overlap;
    options.enable_radix_cache = overlap;
    options.mask_wait_share = overlap ? 0.0 : kWaitsForMasks;
    const MixResult squeezed = run_mix(5, options);
    expect_same_mix(oracle, squeezed);
    EXPECT_GT(squeezed.stats.scheduler.total_retractions, 0);
    EXPECT_GT(squeezed.stats.speculation.accepted, 0);
    if (overlap) {
      EXPECT_GT(squeezed.num_late_masks, 0);
    }
  }
}

TEST_F(DraftTreeTest, AbortsAtAnyMomentLeaveTheOthersAlone) {
  int num_cut = 0;
  EngineOptions options{.max_total_tokens = 16384, .max_running_requests = 32};
  options.overlap_schedule = false;
  const MixResult oracle = run_mix(6, options);
  options = with_tree(options, kUsual);
  options.overlap_schedule = true;
  options.max_total_tokens = kSmallPool;
  options.schedule_conservativeness = 0.05;
  expect_beginnings(6, oracle, run_mix(6, options, /*with_aborts=*/true), num_cut);
  EXPECT_GT(num_cut, 0);
}

TEST_F(DraftTreeTest, EveryCacheFormatKeepsItsBitsWhenRecordsMove) {
  for (const KvFormat format :
       {KvFormat::kF32, KvFormat::kF16, KvFormat::kBF16, KvFormat::kFp8E4M3, KvFormat::kFp8E5M2}) {
    SCOPED_TRACE(to_string(format));
    std::vector<Finished> results;
    for (const bool speculates : {false, true}) {
      EngineOptions options;
      options.kv_layout = cache_layout(model_.config(), format).value();
      if (speculates) options = with_tree(options, kUsual);
      GenerateRequest request = greedy_request(random_prompt(50, 2), 60);  // crosses a page
      request.logprobs = {.enabled = true, .top_num = 2};
      results.push_back(testing::run(*make_engine(options), std::move(request)));
    }
    testing::expect_same(results[0], results[1]);
    EXPECT_GT(results[1].last.speculation.accept_length(), 1.5);
  }
}

// NextN's second choice is right where its first is wrong, so a tree accepts more than a chain as deep.
TEST_F(DraftTreeTest, ATreeAcceptsMoreThanAChain) {
  const auto length = [&](const TreeShape& tree) {
    return testing::run(*make_engine(with_tree({}, tree)), greedy_request(random_prompt(20, 11), 200))
        .last.speculation.accept_length();
  };
  const double chain = length({{.num_steps = 3, .topk = 1}, 4});
  EXPECT_GT(length(kUsual), 1.1 * chain);
}

TEST_F(DraftTreeTest, RequestsWithGrammarsVerifyTreesToo) {
  const auto run = [&](const EngineOptions& options) {
    GenerateRequest request = greedy_request(random_prompt(20, 12), 48);
    request.constraint = std::make_unique<testing::ChainConstraint>(/*modulus=*/2);
    request.logprobs = {.enabled = true, .top_num = 1};
    return testing::run(*make_engine(options), std::move(request));
  };
  const Finished expected = run({});
  for (const bool overlap : {false, true}) {
    for (const double share : {0.0, kWaitsForMasks}) {  // without waiting, masks are often late
      SCOPED_TRACE(::testing::Message() << "overlap " << overlap << " share " << share);
      EngineOptions options = with_tree({}, kUsual);
      options.overlap_schedule = overlap;
      options.mask_wait_share = share;
      const Finished finished = run(options);
      testing::expect_same(expected, finished);
      if (share > 0.0) {
        EXPECT_GT(finished.last.speculation.accepted, 0);
      }
    }
  }
}

TEST_F(DraftTreeTest, FailedStepsEndTheirRequestsAlone) {
  EngineOptions options{.max_total_tokens = 16384, .max_running_requests = 4};
  const MixResult oracle = run_mix(8, options);
  model_.fails_at = 23;
  testing::expect_failed_alone(oracle, run_mix(8, with_tree(options, kUsual)), "this step fails");
}

TEST_F(DraftTreeTest, NanInADraftIsNoFault) {
  const std::vector<int32_t> expected =
      testing::run(*make_engine({}), greedy_request(random_prompt(20, 3), 40)).ids;
  model_.nextn_gives_nan = true;
  EXPECT_EQ(testing::run(*make_engine(with_tree({}, kUsual)), greedy_request(random_prompt(20, 3), 40)).ids,
            expected);
}

// The records of a tree are no further than those of the tokens that the request may generate.
TEST_F(DraftTreeTest, NoRowPassesTheContextOrTheLimit) {
  for (const int64_t max_new : {1, 2, 3, 9}) {
    for (const bool overlap : {false, true}) {
      EngineOptions options{.max_total_tokens = 64, .context_length = 64};
      options.overlap_schedule = overlap;
      const Finished expected =
          testing::run(*make_engine(options), greedy_request(random_prompt(64 - max_new, 9), max_new));
      const Finished finished = testing::run(*make_engine(with_tree(options, {{5, 8}, 64})),
                                             greedy_request(random_prompt(64 - max_new, 9), max_new));
      testing::expect_same(expected, finished);
      EXPECT_EQ(finished.last.completion_tokens, max_new);
    }
  }
}

TEST_F(DraftTreeTest, WidthsThatChangeGiveTheSameBits) {
  EngineOptions options{.max_total_tokens = 16384, .max_running_requests = 32, .chunked_prefill_size = 96};
  const MixResult oracle = run_mix(1, options);
  options = with_tree(options, kUsual);
  options.speculation_adapts = true;
  for (const bool overlap : {false, true}) {
    options.overlap_schedule = overlap;
    const MixResult adapted = run_mix(1, options);
    expect_same_mix(oracle, adapted);
    EXPECT_GT(adapted.stats.speculation.drafts, 0);
    EXPECT_LT(adapted.stats.speculation.mean_width(), 7.0);
  }
}

TEST_F(DraftTreeTest, CountsAddUp) {
  const CheckedEngine engine = make_engine(with_tree({}, kUsual));
  const auto sink = std::make_shared<testing::Collector>();
  GenerateRequest request = greedy_request(random_prompt(20, 11), 60);
  request.sink = sink;
  const RequestId id = engine->submit(std::move(request)).value();
  sink->wait_finished(1);
  const Finished finished = sink->result(id);
  const SpeculationCounts& counts = finished.last.speculation;
  EXPECT_EQ(counts.tokens, counts.verifications + counts.accepted);
  EXPECT_EQ(counts.tokens, 59);  // the prompt's step samples the first token
  EXPECT_GT(counts.drafts, 5 * counts.verifications) << "of seven, fewer only at the end";
  EXPECT_EQ(finished.num_chunks, 1 + counts.verifications);
}

// The best draft of each depth is the one whose acceptance is simulated.
TEST_F(DraftTreeTest, SimulatedAcceptanceHasTheChancesOfEachDepth) {
  EngineOptions options = with_tree({.max_running_requests = 32}, kUsual);
  options.simulated_acceptance = {1.0, 0.5};
  const CheckedEngine engine = make_engine(options);
  const auto sink = std::make_shared<testing::Collector>();
  constexpr int kRequests = 6;
  for (int i = 0; i < kRequests; ++i) {
    GenerateRequest request = greedy_request(random_prompt(20, i), 120);
    request.sampling.seed = 100 + i;
    request.sink = sink;
    EXPECT_TRUE(engine->submit(std::move(request)).ok());
  }
  sink->wait_finished(kRequests);
  EXPECT_LE(engine->stats().speculation.accept_length(), 2.65);
  EXPECT_GE(engine->stats().speculation.accept_length(), 1.9) << "a tree may have no second depth";
}

TEST_F(DraftTreeTest, RanksGiveTheSameBitsWithAndWithoutThem) {
  std::vector<Finished> results;
  for (const bool speculates : {false, true}) {
    const auto ranks = testing::make_small_ranks("v3+nextn", {.tp = 2, .ep = 1}, pool_);
    const ModelConfig config = ranks[0]->config();
    EngineOptions options{.max_total_tokens = 4096, .max_running_requests = 16, .context_length = 1024};
    if (speculates) options = with_tree(options, {{4, 4}, 40});
    options.kv_layout = cache_layout(config, KvFormat::kBF16).value();
    auto runner = std::make_unique<RankRunner>(
        ranks, RankRunnerOptions{.num_pages = 64, .layout = options.kv_layout, .num_threads = 2});
    auto executor = std::make_unique<CpuExecutor>(std::move(runner), pool_, speculates, std::vector<double>(),
                                                  options.draft_shape);
    const CheckedEngine engine(Engine::create(std::move(executor), config, options).value());
    GenerateRequest request = greedy_request(random_prompt(90, 2), 60);
    request.logprobs = {.enabled = true, .top_num = 2};
    results.push_back(testing::run(*engine, std::move(request)));
    EXPECT_EQ(results.back().last.speculation.drafts > 0, speculates);
  }
  testing::expect_same(results[0], results[1]);
}

TEST_F(DraftTreeTest, WhatCannotHaveTreesSaysSo) {
  const auto sparse = testing::make_small_model("v3.2+nextn", pool_);
  EngineOptions options = with_tree({.max_total_tokens = 4096}, kUsual);
  options.kv_layout = cache_layout(sparse->config(), KvFormat::kBF16).value();
  EXPECT_EQ(
      Engine::create(*sparse, pool_, options).status().message,
      "speculative-eagle-topk is 4; allowed with DeepSeek-V3.2's sparse attention: 1, which means chains of "
      "drafts");
  options = with_tree({.max_total_tokens = 4096}, {{2, 2}, 8});
  EXPECT_THAT(Engine::create(model_, pool_, options).status().message,
              HasSubstr("speculation-width is 8; allowed: at most 7"));
  options.draft_shape = {.num_steps = 0, .topk = 65};
  EXPECT_THAT(Engine::create(model_, pool_, options).status().message,
              HasSubstr("0 steps and topk 65; allowed: 1 to 63 steps, topk 1 to 64"));
}

// Moves records in two layers, with and without index keys, and compares every byte of the pools.
TEST(MoveRecords, MovesRecordsAndIndexKeysUnchangedInEveryLayer) {
  for (const KvLayout& layout : {KvLayout{.format = KvFormat::kFp8E4M3}, KvLayout{.format = KvFormat::kF32},
                                 KvLayout{.format = KvFormat::kBF16, .index = KvIndex::kE4M3},
                                 KvLayout{.format = KvFormat::kF32, .index = KvIndex::kF32}}) {
    const KvCache cache(2, 3, layout);
    std::mt19937_64 random(3);
    const auto pools = [&](int64_t layer) {
      return std::pair(
          std::span(cache.layer(layer), static_cast<size_t>(3 * layout.page_bytes())),
          std::span(cache.index_layer(layer), static_cast<size_t>(3 * layout.index_page_bytes())));
    };
    std::vector<std::vector<std::byte>> expected, found;
    const auto keep = [&](std::vector<std::vector<std::byte>>& all) {
      for (int64_t layer = 0; layer < 2; ++layer) {
        for (const auto& pool : {pools(layer).first, pools(layer).second})
          all.emplace_back(pool.begin(), pool.end());
      }
    };
    for (int64_t layer = 0; layer < 2; ++layer) {
      for (const auto& pool : {pools(layer).first, pools(layer).second}) {
        for (std::byte& byte : pool) byte = static_cast<std::byte>(random());
      }
    }
    keep(expected);
    // The second move has the target of the first as its source.
    const std::vector<RecordMove> moves = {{.source = 130, .target = 63}, {.source = 63, .target = 64}};
    for (int64_t pool = 0; pool < 4; ++pool) {
      const auto copy = [&](int64_t page_bytes, int64_t offset, int64_t bytes) {
        for (const RecordMove& move : moves) {
          const auto at = [&](int64_t slot) { return slot / 64 * page_bytes + offset + slot % 64 * bytes; };
          std::memcpy(&expected[pool][at(move.target)], &expected[pool][at(move.source)], bytes);
        }
      };
      if (pool % 2 == 0) {
        copy(layout.page_bytes(), 0, layout.row_bytes());
      } else if (layout.index == KvIndex::kF32) {
        copy(layout.index_page_bytes(), 0, 512);
      } else if (layout.index == KvIndex::kE4M3) {
        copy(layout.index_page_bytes(), 0, 128);
        copy(layout.index_page_bytes(), 64 * 128, 4);
      }
    }
    move_records(cache, 2, moves);
    keep(found);
    EXPECT_EQ(found, expected);
  }
}

}  // namespace
}  // namespace hadal
