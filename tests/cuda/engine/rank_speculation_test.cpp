// Tests that ranks which share the bundled model, and take turns on one GPU, speculate like one rank. Every
// step also compares what the ranks have sampled and how many drafts they verified (RankGroupExecutor), so a
// test that completes shows that the states of all ranks were equal throughout.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/cuda/engine/speculating_model_test.h"

namespace hadal {
namespace {

using testing::CheckedEngine;
using testing::Finished;
using testing::greedy_request;
using testing::kPrompts;
using testing::MixResult;
using testing::relative_error;

// The sums of ranks are rounded to 16 bits, and close calls of the router then send a token elsewhere.
constexpr double kMaxError = 0.15;
constexpr ModelSplit kSplits[] = {{.tp = 2}, {.tp = 4, .ep = 2}, {.tp = 8, .ep = 8}};

class RankSpeculationTest : public testing::SpeculatingModelTest,
                            public ::testing::WithParamInterface<ModelSplit> {
 protected:
  std::unique_ptr<Backend> ranks_ = load(GetParam(), KernelSet::kOptimised, /*with_nextn=*/true);
};

TEST_P(RankSpeculationTest, NextnLogitsAreThoseOfOneRank) {
  for (const int64_t num_decoded : {0, 6}) {
    SCOPED_TRACE(num_decoded);
    const NextnLogits want = nextn_logits(*backend_, num_decoded);
    const NextnLogits got = nextn_logits(*ranks_, num_decoded);
    const double of_target = relative_error(got.target, want.target);
    const double of_nextn = relative_error(got.nextn, want.nextn);
    std::printf("relative error: target %.2e, NextN %.2e\n", of_target, of_nextn);
    EXPECT_LE(of_target, kMaxError);
    EXPECT_LE(of_nextn, kMaxError);
  }
}

TEST_P(RankSpeculationTest, GreedyTokensAreThoseOfTheSameRanksWithoutIt) {
  const std::vector<Finished> expected = run_prompts(*ranks_, options_of(0));
  const std::vector<Finished> got = run_prompts(*ranks_, options_of(4));
  EXPECT_GT(testing::expect_greedy(expected, got), 9 * 60 / 2);
}

TEST_P(RankSpeculationTest, GreedyTokensWithTreesAreThoseOfTheSameRanksWithoutIt) {
  EngineOptions options = options_of(8);
  options.draft_shape = {.num_steps = 3, .topk = 4};
  const std::vector<Finished> expected = run_prompts(*ranks_, options_of(0));
  const std::vector<Finished> got = run_prompts(*ranks_, options);
  EXPECT_GT(testing::expect_greedy(expected, got), 9 * 60 / 2);
}

TEST_P(RankSpeculationTest, DraftsAreAcceptedAsOnOneRank) {
  SpeculationCounts counts[2];
  Backend* const backends[] = {backend_.get(), ranks_.get()};
  for (int i = 0; i < 2; ++i) {
    const CheckedEngine engine = make_engine(*backends[i], options_of(4));
    for (const std::vector<int32_t>& prompt : kPrompts)
      counts[i] += testing::run(*engine, greedy_request(prompt, 60)).last.speculation;
  }
  std::printf("accept length: one rank %.2f, ranks %.2f\n", counts[0].accept_length(),
              counts[1].accept_length());
  EXPECT_GT(counts[1].accept_length(), 1.5);
  EXPECT_NEAR(counts[1].accept_length(), counts[0].accept_length(), 0.5);
}

// The mix has grammars, penalties, biases, ends, stop conditions, log-probabilities and shared beginnings.
// With few pages, requests are retracted; under the policy, requests take steps without drafts.
TEST_P(RankSpeculationTest, EveryKindOfRequestCompletesUnderEverySchedule) {
  for (const bool overlap : {false, true}) {
    for (const int64_t tokens : {int64_t{16384}, int64_t{64 * 9}}) {
      SCOPED_TRACE(::testing::Message() << "overlap " << overlap << " " << tokens);
      EngineOptions options = options_of(4, overlap);
      options.max_total_tokens = tokens;
      options.schedule_conservativeness = tokens < 16384 ? 0.05 : 1.0;  // admits too many on purpose
      const MixResult mix = testing::run_mix(make_engine(*ranks_, options), 4);
      for (const Finished& finished : mix.finished) {
        EXPECT_NE(finished.last.finish_reason, FinishReason::kAbort) << finished.last.abort_text;
        EXPECT_EQ(finished.last.completion_tokens, std::ssize(finished.ids));
      }
      EXPECT_GT(mix.stats.speculation.drafts, 0);
    }
  }
}

// Requests run one at a time, so that both loops compute the same batches.
TEST_P(RankSpeculationTest, TheOverlappedLoopChangesNoBitOfARequestAlone) {
  const auto run = [&](bool overlap) {
    EngineOptions options = options_of(4, overlap);
    options.max_running_requests = 1;
    options.enable_radix_cache = false;  // drafts, and so the rows of steps, would depend on what it keeps
    options.mask_wait_share = std::numeric_limits<double>::infinity();
    return run_all(*ranks_, options, 6, [](int i) { return testing::mixed_request(3, i); });
  };
  const std::vector<Finished> plain = run(false);
  const std::vector<Finished> overlapped = run(true);
  for (size_t i = 0; i < plain.size(); ++i) {
    SCOPED_TRACE(i);
    testing::expect_same(plain[i], overlapped[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Splits, RankSpeculationTest, ::testing::ValuesIn(kSplits), [](const auto& of) {
  return "Tp" + std::to_string(of.param.tp) + "Ep" + std::to_string(of.param.ep);
});

}  // namespace
}  // namespace hadal
