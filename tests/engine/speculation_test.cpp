// Tests that speculation changes no token and no bit of a log-probability. The engine without it is the
// oracle, over the mixes of overlap_test, for every width, both loops and tiny pools.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "engine/backend.h"
#include "engine/cpu/cpu_executor.h"
#include "engine/cpu/rank_runner.h"
#include "tests/engine/fake_executor.h"
#include "tests/engine/guessable_model.h"
#include "tests/engine/recorded_plans.h"
#include "tests/engine/request_mix.h"
#include "tests/engine/small_model.h"

namespace hadal {
namespace {

using testing::CheckedEngine;
using testing::drain;
using testing::expect_beginnings;
using testing::expect_same_mix;
using testing::Finished;
using testing::greedy_request;
using testing::GuessableModel;
using ::testing::HasSubstr;
using testing::kFewRequests;
using testing::kNumRequests;
using testing::kTinyPool;
using testing::kVocab;
using testing::MixResult;
using testing::random_prompt;

// A step waits for its masks however long they take, so that no draft is dropped because the machine is busy.
constexpr double kWaits = std::numeric_limits<double>::infinity();

class SpeculationTest : public ::testing::Test {
 protected:
  CheckedEngine make_engine(EngineOptions options) {
    options.decode_log_interval = 0;
    if (options.max_total_tokens == 0) options.max_total_tokens = 16384;
    return CheckedEngine(Engine::create(model_, pool_, options).value());
  }
  MixResult run_mix(uint64_t seed, EngineOptions options, int num_requests = kNumRequests,
                    bool with_aborts = false) {
    // Where steps do not wait for masks, masks are never made in time.
    const std::chrono::milliseconds mask_delay(options.mask_wait_share == 0.0 ? 2 : 0);
    const testing::RecordedPlans plans;
    options.record_plans = plans.path();
    MixResult result = testing::run_mix(make_engine(options), seed, with_aborts, num_requests, mask_delay);
    result.num_late_masks = plans.count("\"call\":\"defer\"");
    return result;
  }

  ThreadPool pool_{2};
  GuessableModel model_{testing::make_small_model("v3+nextn", pool_)};
};

TEST_F(SpeculationTest, EveryWidthAndBothLoopsGiveTheSameBits) {
  for (const uint64_t seed : {1, 2}) {
    SCOPED_TRACE(seed);
    EngineOptions options{.max_total_tokens = 16384, .max_running_requests = 32, .chunked_prefill_size = 96};
    options.overlap_schedule = false;
    const MixResult oracle = run_mix(seed, options, kFewRequests);
    for (const int64_t width : seed == 1 ? std::vector<int64_t>{2, 4} : std::vector<int64_t>{1, 9}) {
      for (const bool overlap : {false, true}) {
        if (seed == 2 && !overlap) continue;
        SCOPED_TRACE(::testing::Message() << "width " << width << " overlap " << overlap);
        options.speculation_width = width;
        options.overlap_schedule = overlap;
        options.mask_wait_share = kWaits;
        const MixResult speculated = run_mix(seed, options, kFewRequests);
        expect_same_mix(oracle, speculated);
        EXPECT_EQ(oracle.stats.generation_tokens, speculated.stats.generation_tokens);
        const SpeculationCounts& counts = speculated.stats.speculation;
        EXPECT_GT(counts.verifications, 0);
        if (width == 1) {
          EXPECT_EQ(counts.drafts, 0);
        } else {
          EXPECT_GT(counts.accept_rate(), 0.1);  // grammars refuse four drafts in five
          EXPECT_LT(counts.accept_rate(), 1.0);
        }
        EXPECT_LE(counts.accepted, counts.drafts);
        EXPECT_LE(counts.drafts, counts.verifications * (width - 1));
      }
    }
  }
}

TEST_F(SpeculationTest, RetractionTheCacheAndLateMasksChangeNothing) {
  for (const uint64_t seed : {5}) {
    SCOPED_TRACE(seed);
    EngineOptions options{.max_total_tokens = 16384, .max_running_requests = 32};
    options.overlap_schedule = false;
    options.enable_radix_cache = false;
    const MixResult oracle = run_mix(seed, options, kFewRequests);
    EXPECT_EQ(oracle.stats.scheduler.total_retractions, 0);
    options.max_total_tokens = kTinyPool;
    options.schedule_conservativeness = 0.05;  // admits too many on purpose
    options.speculation_width = 4;
    for (const bool overlap : {false, true}) {
      for (const bool cache : {false, true}) {
        SCOPED_TRACE(::testing::Message() << "overlap " << overlap << " cache " << cache);
        options.overlap_schedule = overlap;
        options.enable_radix_cache = cache;
        options.mask_wait_share = cache ? 0.0 : kWaits;
        const MixResult squeezed = run_mix(seed, options, kFewRequests);
        expect_same_mix(oracle, squeezed);
        EXPECT_GT(squeezed.stats.scheduler.total_retractions, 0);
        EXPECT_GT(squeezed.stats.speculation.accepted, 0);
        if (cache) {
          EXPECT_GT(squeezed.num_late_masks, 0);
        }
      }
    }
  }
}

TEST_F(SpeculationTest, AbortsAtAnyMomentLeaveTheOthersAlone) {
  int num_cut = 0;
  for (const uint64_t seed : {6}) {
    SCOPED_TRACE(seed);
    EngineOptions options{.max_total_tokens = 16384, .max_running_requests = 32};
    options.overlap_schedule = false;
    const MixResult oracle = run_mix(seed, options, kFewRequests);
    options.speculation_width = 4;
    for (const int64_t tokens : {int64_t{16384}, kTinyPool}) {
      options.max_total_tokens = tokens;
      options.schedule_conservativeness = tokens == kTinyPool ? 0.05 : 1.0;
      options.overlap_schedule = true;
      const MixResult cut = run_mix(seed, options, kFewRequests, /*with_aborts=*/true);
      expect_beginnings(seed, oracle, cut, num_cut);
    }
  }
  EXPECT_GT(num_cut, 0);
}

// The masks after drafts are made while the step runs, and drafts without a mask wait for the next step.
TEST_F(SpeculationTest, RequestsWithGrammarsVerifyDraftsToo) {
  const auto run = [&](const EngineOptions& options) {
    GenerateRequest request = greedy_request(random_prompt(20, 12), 48);
    request.constraint = std::make_unique<testing::ChainConstraint>(/*modulus=*/2);
    request.logprobs = {.enabled = true, .top_num = 1};
    return testing::run(*make_engine(options), std::move(request));
  };
  const Finished expected = run({});
  for (const bool overlap : {false, true}) {
    for (const double share : {0.0, kWaits}) {  // without waiting, masks are often late
      SCOPED_TRACE(::testing::Message() << "overlap " << overlap << " share " << share);
      EngineOptions options{.speculation_width = 4};
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

// Each request either fails with the step's reason, or has the answer that it has alone.
TEST_F(SpeculationTest, FailedStepsEndTheirRequestsAlone) {
  EngineOptions options{.max_total_tokens = 16384, .max_running_requests = 4};
  options.overlap_schedule = false;
  const MixResult oracle = run_mix(8, options, kFewRequests);
  options.speculation_width = 4;
  model_.fails_at = 23;
  for (const bool overlap : {false, true}) {
    SCOPED_TRACE(::testing::Message() << "overlap " << overlap);
    options.overlap_schedule = overlap;
    testing::expect_failed_alone(oracle, run_mix(8, options, kFewRequests), "this step fails");
  }
}

TEST_F(SpeculationTest, NanInADraftIsNoFaultAndOnTheAcceptedPathAbortsItsRequest) {
  GenerateRequest request = greedy_request(random_prompt(20, 3), 40);
  const std::vector<int32_t> expected = testing::run(*make_engine({}), std::move(request)).ids;
  model_.nextn_gives_nan = true;
  EXPECT_EQ(
      testing::run(*make_engine({.speculation_width = 4}), greedy_request(random_prompt(20, 3), 40)).ids,
      expected);
  model_.nextn_gives_nan = false;
  model_.poison_position = 35;
  const Finished cut =
      testing::run(*make_engine({.speculation_width = 4}), greedy_request(random_prompt(20, 3), 40));
  EXPECT_EQ(cut.last.finish_reason, FinishReason::kAbort);
  EXPECT_THAT(cut.last.abort_text, HasSubstr("NaN"));
  EXPECT_EQ(cut.ids, std::vector<int32_t>(expected.begin(), expected.begin() + 16));  // up to position 35
}

TEST_F(SpeculationTest, NoRowPassesTheContextOrTheLimit) {
  for (const int64_t max_new : {1, 2, 3, 5}) {
    for (const bool overlap : {false, true}) {
      // The prompt and the answer fill the context, and the pool to its last row.
      EngineOptions options{.max_total_tokens = 64, .context_length = 64};
      options.overlap_schedule = overlap;
      options.speculation_width = 0;
      const Finished expected =
          testing::run(*make_engine(options), greedy_request(random_prompt(64 - max_new, 9), max_new));
      options.speculation_width = 8;
      const Finished finished =
          testing::run(*make_engine(options), greedy_request(random_prompt(64 - max_new, 9), max_new));
      testing::expect_same(expected, finished);
      EXPECT_EQ(finished.last.completion_tokens, max_new);
    }
  }
}

TEST_F(SpeculationTest, APrefixHitIsOneTokenShorter) {
  for (const int64_t width : {0, 4}) {
    const CheckedEngine engine = make_engine({.speculation_width = width});
    const std::vector<int32_t> prompt = random_prompt(150, 5);
    testing::run(*engine, greedy_request(prompt, 1));
    std::vector<int32_t> longer = prompt;
    longer.push_back(3);
    EXPECT_EQ(testing::run(*engine, greedy_request(longer, 1)).last.cached_tokens, width == 0 ? 150 : 149);
  }
}

// In steps without drafts NextN is left out, and the records of the last tokens are computed later, when a
// step speculates again.
TEST_F(SpeculationTest, WidthsThatChangeGiveTheSameBits) {
  EngineOptions options{.max_total_tokens = 16384, .max_running_requests = 32, .chunked_prefill_size = 96};
  const MixResult oracle = run_mix(1, options);
  options.speculation_width = 4;
  options.speculation_adapts = true;
  for (const bool overlap : {false, true}) {
    options.overlap_schedule = overlap;
    options.mask_wait_share = kWaits;
    const MixResult adapted = run_mix(1, options);
    expect_same_mix(oracle, adapted);
    const SpeculationCounts& counts = adapted.stats.speculation;
    EXPECT_GT(counts.drafts, 0) << "the last requests run alone";
    EXPECT_LT(counts.drafts, counts.verifications) << "many together do not speculate";
  }
}

TEST_F(SpeculationTest, TheSameRequestsGetTheSameWidths) {
  const auto counts = [&] {
    EngineOptions options{.speculation_width = 4};
    options.speculation_adapts = true;
    return testing::run(*make_engine(options), greedy_request(random_prompt(20, 11), 300)).last.speculation;
  };
  const SpeculationCounts one = counts(), other = counts();
  EXPECT_GT(one.drafts, 0);
  EXPECT_EQ(one.verifications, other.verifications);
  EXPECT_EQ(one.drafts, other.drafts);
  EXPECT_EQ(one.accepted, other.accepted);
}

TEST_F(SpeculationTest, CountsAddUp) {
  const CheckedEngine engine = make_engine({.speculation_width = 4});
  const auto sink = std::make_shared<testing::Collector>();  // a stream would join chunks
  GenerateRequest request = greedy_request(random_prompt(20, 11), 60);
  request.sink = sink;
  const RequestId id = engine->submit(std::move(request)).value();
  sink->wait_finished(1);
  const Finished finished = sink->result(id);
  const SpeculationCounts& counts = finished.last.speculation;
  EXPECT_EQ(counts.tokens, counts.verifications + counts.accepted);
  EXPECT_EQ(counts.tokens, 59);  // the prompt's step samples the first token
  EXPECT_GT(counts.accept_length(), 1.5);
  EXPECT_EQ(engine->stats().speculation.tokens, counts.tokens);
  // Tokens that a step samples arrive in one chunk.
  EXPECT_EQ(finished.num_chunks, 1 + counts.verifications);
}

// With simulated acceptance, it does not matter which drafts are right, so the counts follow from the chances
// alone.
TEST_F(SpeculationTest, SimulatedAcceptanceHasTheChancesOfEachDepth) {
  const auto counts = [&](std::vector<double> chances, int num_requests, int64_t tokens) {
    EngineOptions options{.max_running_requests = 32, .speculation_width = 4};
    options.simulated_acceptance = std::move(chances);
    const CheckedEngine engine = make_engine(options);
    const auto sink = std::make_shared<testing::Collector>();
    for (int i = 0; i < num_requests; ++i) {
      GenerateRequest request = greedy_request(random_prompt(20, i), tokens);
      request.sampling.seed = 100 + i;
      request.sink = sink;
      EXPECT_TRUE(engine->submit(std::move(request)).ok());
    }
    sink->wait_finished(num_requests);
    EXPECT_TRUE(engine->stats().acceptance_is_simulated);
    return engine->stats().speculation;
  };
  const SpeculationCounts none = counts({0.0, 1.0, 1.0}, 4, 20);
  EXPECT_GT(none.drafts, 0);
  EXPECT_EQ(none.accepted, 0);
  const SpeculationCounts all = counts({1.0, 1.0, 1.0}, 4, 20);
  EXPECT_GT(all.drafts, 0);
  EXPECT_EQ(all.accepted, all.drafts);
  const SpeculationCounts first = counts({1.0}, 4, 120);  // deeper drafts are never accepted
  EXPECT_NEAR(first.accept_length(), 2.0, 0.02) << "except for steps that have no draft at the end";
  const SpeculationCounts some = counts({0.92, 0.72, 0.36}, 8, 120);
  const SpeculationCounts again = counts({0.92, 0.72, 0.36}, 8, 120);
  EXPECT_NEAR(some.accept_length(), 1.0 + 0.92 * (1.0 + 0.72 * (1.0 + 0.36)), 0.15);
  EXPECT_EQ(some.verifications, again.verifications);
  EXPECT_EQ(some.accepted, again.accepted);
}

// The masks after a draft are those of its own text.
TEST_F(SpeculationTest, SimulatedAcceptanceLeavesGrammarsAlone) {
  const auto run = [&](std::vector<double> chances) {
    EngineOptions options{.speculation_width = 4};
    options.mask_wait_share = kWaits;
    options.simulated_acceptance = std::move(chances);
    GenerateRequest request = greedy_request(random_prompt(20, 12), 48);
    request.constraint = std::make_unique<testing::ChainConstraint>(/*modulus=*/2);
    return testing::run(*make_engine(options), std::move(request));
  };
  testing::expect_same(run({}), run({1.0, 1.0, 1.0}));
}

// The indexer selects 48 keys. Prompts of 30 and 41 tokens cross this limit in decode, and most steps there
// have rows on both sides of it.
TEST_F(SpeculationTest, StepsThatCrossTheLimitOfAnIndexerGiveTheSameBits) {
  GuessableModel sparse(testing::make_small_model("v3.2+nextn", pool_));
  const auto answers = [&](int64_t width, KvFormat format) {
    EngineOptions options{.max_total_tokens = 4096, .context_length = 1024, .speculation_width = width};
    options.decode_log_interval = 0;
    options.speculation_adapts = false;
    options.kv_layout = cache_layout(sparse.config(), format).value();
    const CheckedEngine engine(Engine::create(sparse, pool_, options).value());
    std::vector<Finished> finished;
    for (const int64_t length : {30, 41, 47, 90}) {
      GenerateRequest request = greedy_request(random_prompt(length, length), 40);
      request.logprobs = {.enabled = true, .top_num = 2};
      finished.push_back(testing::run(*engine, std::move(request)));
    }
    return finished;
  };
  for (const KvFormat format : {KvFormat::kBF16, KvFormat::kF32}) {
    const std::vector<Finished> expected = answers(0, format);
    for (const int64_t width : {2, 4, 7}) {
      SCOPED_TRACE(width);
      const std::vector<Finished> got = answers(width, format);
      for (size_t i = 0; i < got.size(); ++i) {
        testing::expect_same(got[i], expected[i]);
        EXPECT_GT(got[i].last.speculation.accepted, 0);
      }
    }
  }
}

TEST_F(SpeculationTest, RanksGiveTheSameBitsWithAndWithoutIt) {
  for (const std::string kind : {"v3+nextn", "v3.2+nextn"}) {
    SCOPED_TRACE(kind);
    std::vector<Finished> results;
    for (const int64_t width : {0, 4}) {
      const auto ranks = testing::make_small_ranks(kind, {.tp = 2, .ep = 1}, pool_);
      const ModelConfig config = ranks[0]->config();
      EngineOptions options{.max_total_tokens = 4096, .max_running_requests = 16, .context_length = 1024};
      options.speculation_width = width;
      options.kv_layout = cache_layout(config, KvFormat::kBF16).value();
      auto runner = std::make_unique<RankRunner>(
          ranks, RankRunnerOptions{.num_pages = 64, .layout = options.kv_layout, .num_threads = 2});
      const CheckedEngine engine(
          Engine::create(std::make_unique<CpuExecutor>(std::move(runner), pool_, width > 0), config, options)
              .value());
      GenerateRequest request = greedy_request(random_prompt(90, 2), 30);
      request.logprobs = {.enabled = true, .top_num = 2};
      results.push_back(testing::run(*engine, std::move(request)));
      EXPECT_EQ(results.back().last.speculation.verifications > 0, width > 0);
    }
    testing::expect_same(results[0], results[1]);
  }
}

TEST_F(SpeculationTest, WhatCannotSpeculateSaysSo) {
  const auto plain = testing::make_small_model("v3", pool_);
  EngineOptions options{.max_total_tokens = 4096, .speculation_width = 4};
  EXPECT_THAT(Engine::create(*plain, pool_, options).status().message, HasSubstr("NextN"));
  options.context_length = 1024;
  EXPECT_THAT(Engine::create(std::make_unique<testing::FakeExecutor>(), testing::fake_config(), options)
                  .status()
                  .message,
              HasSubstr("does not speculate"));
  options.speculation_width = 65;
  EXPECT_THAT(Engine::create(model_, pool_, options).status().message,
              HasSubstr("is 65; allowed: 0 (none) to 64"));
  options.speculation_width = 3;
  options.simulated_acceptance = {0.9, 0.5, 0.1};
  EXPECT_THAT(Engine::create(model_, pool_, options).status().message,
              HasSubstr("simulated-acceptance has 3 numbers; allowed: at most 2"));
  options.simulated_acceptance = {0.9, 1.5};
  EXPECT_THAT(Engine::create(model_, pool_, options).status().message,
              HasSubstr("simulated-acceptance has 1.5; allowed: numbers in [0, 1]"));
}

}  // namespace
}  // namespace hadal
