// Runs speculation with trees of drafts on the GPU, over the bundled model, which has the NextN layer.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cuda/engine/speculating_model_test.h"

namespace hadal {
namespace {

using testing::CheckedEngine;
using testing::Finished;
using testing::greedy_request;
using testing::kPrompts;
using testing::MixResult;
using testing::random_prompt;

struct Tree {
  DraftShape shape;
  int64_t width = 0;
};
constexpr Tree kUsualTree{{.num_steps = 3, .topk = 4}, 8};
constexpr Tree kTrees[] = {kUsualTree, {{2, 2}, 7}, {{1, 3}, 4}, {{5, 8}, 33}, {{6, 8}, 64}};

class TreeSpeculationTest : public testing::SpeculatingModelTest {
 protected:
  static EngineOptions options_of(const Tree& tree, bool overlap = true) {
    EngineOptions options = SpeculatingModelTest::options_of(tree.width, overlap);
    options.draft_shape = tree.shape;
    return options;
  }
  static SpeculationCounts counts_of(Backend& backend, const EngineOptions& options) {
    SpeculationCounts counts;
    const CheckedEngine engine(Engine::create(backend, options).value());
    for (const std::vector<int32_t>& prompt : kPrompts)
      counts += testing::run(*engine, greedy_request(prompt, 60)).last.speculation;
    return counts;
  }
};

TEST_F(TreeSpeculationTest, GreedyTokensAreThoseWithoutIt) {
  const std::vector<Finished> expected = run_prompts(*backend_, SpeculatingModelTest::options_of(0));
  for (const Tree& tree : kTrees) {
    SCOPED_TRACE(tree.width);
    const std::vector<Finished> got = run_prompts(*backend_, options_of(tree));
    EXPECT_GT(testing::expect_greedy(expected, got), 9 * 60 / 2);
    int64_t accepted = 0;
    for (const Finished& finished : got) {
      const SpeculationCounts& counts = finished.last.speculation;
      EXPECT_EQ(counts.tokens, 59);  // the prompt's step samples the first token
      EXPECT_EQ(counts.tokens, counts.verifications + counts.accepted);
      EXPECT_LE(counts.drafts, counts.verifications * (tree.width - 1));
      EXPECT_LE(counts.accepted, counts.verifications * tree.shape.num_steps);
      accepted += counts.accepted;
    }
    EXPECT_GT(accepted, 0);
  }
}

// In each cache format, records keep their bytes when they move.
TEST_F(TreeSpeculationTest, EveryCacheFormatGivesTheTokensWithoutIt) {
  for (const KvFormat format : {KvFormat::kBF16, KvFormat::kFp8E4M3, KvFormat::kFp8E5M2}) {
    SCOPED_TRACE(to_string(format));
    EngineOptions plain = SpeculatingModelTest::options_of(0);
    EngineOptions speculates = options_of(kUsualTree);
    plain.kv_layout = speculates.kv_layout = cache_layout(backend_->config(), format).value();
    EXPECT_GT(testing::expect_greedy(run_prompts(*backend_, plain), run_prompts(*backend_, speculates)),
              9 * 60 / 2);
  }
}

TEST_F(TreeSpeculationTest, DraftsAreAcceptedAsOnTheCpu) {
  const auto cpu = load({}, KernelSet::kOptimised, true, DeviceType::kCpu);
  const SpeculationCounts expected = counts_of(*cpu, options_of(kUsualTree));
  const SpeculationCounts counts = counts_of(*backend_, options_of(kUsualTree));
  const SpeculationCounts chain = counts_of(*backend_, SpeculatingModelTest::options_of(4));
  std::printf("accept length: CPU %.2f, GPU %.2f, chain %.2f\n", expected.accept_length(),
              counts.accept_length(), chain.accept_length());
  EXPECT_NEAR(counts.accept_length(), expected.accept_length(), 0.5);
  EXPECT_GT(counts.accept_length(), chain.accept_length() - 0.1);
}

TEST_F(TreeSpeculationTest, GraphsGiveTheBitsOfKernelsOneByOne) {
  for (const Tree& tree : {kUsualTree, kTrees[3]}) {
    for (const int count : {1, 9}) {
      for (const bool adapts : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << "width " << tree.width << ", requests " << count << ", adapts " << adapts);
        const auto answers = [&](bool use_graphs) {
          EngineOptions options = options_of(tree, false);
          options.device.use_graphs = use_graphs;
          options.speculation_adapts = adapts;
          return run_all(*backend_, options, count, [](int i) {
            GenerateRequest request = greedy_request(kPrompts[i % 3], i % 3 == 1 ? 20 : 48);
            request.sampling.temperature = i % 2 == 0 ? 0.0F : 0.7F;
            request.logprobs = {.enabled = true, .top_num = 2};
            return request;
          });
        };
        const std::vector<Finished> graphed = answers(true);
        const std::vector<Finished> eager = answers(false);
        for (size_t i = 0; i < graphed.size(); ++i) {
          SCOPED_TRACE(i);
          EXPECT_EQ(graphed[i].last.completion_tokens, i % 3 == 1 ? 20 : 48);
          testing::expect_same(graphed[i], eager[i]);
        }
      }
    }
  }
}

TEST_F(TreeSpeculationTest, AStepOfVerificationsIsAGraph) {
  const CheckedEngine engine = make_engine(*backend_, options_of(kUsualTree, false));
  testing::run(*engine, greedy_request(kPrompts[0], 40));
  EXPECT_TRUE(engine->stats().decode_graphed);
}

// The mix has grammars, penalties, biases, ends, stop conditions, log-probabilities and shared beginnings.
// With few pages requests are retracted, and under the policy widths change and NextN rests.
TEST_F(TreeSpeculationTest, EveryKindOfRequestCompletesUnderEverySchedule) {
  for (const bool adapts : {false, true}) {
    for (const bool overlap : {false, true}) {
      for (const int64_t tokens : {int64_t{16384}, int64_t{64 * 9}}) {
        SCOPED_TRACE(::testing::Message() << "adapts " << adapts << " overlap " << overlap << " " << tokens);
        EngineOptions options = options_of(kUsualTree, overlap);
        options.speculation_adapts = adapts;
        options.max_total_tokens = tokens;
        options.schedule_conservativeness = tokens < 16384 ? 0.05 : 1.0;  // admits too many on purpose
        const MixResult mix = testing::run_mix(make_engine(*backend_, options), 4);
        for (const Finished& finished : mix.finished) {
          EXPECT_NE(finished.last.finish_reason, FinishReason::kAbort) << finished.last.abort_text;
          EXPECT_EQ(finished.last.completion_tokens, std::ssize(finished.ids));
          for (const TokenLogprob& logprob : finished.logprobs)
            EXPECT_TRUE(std::isfinite(logprob.logprob) && logprob.logprob <= 1e-4F) << logprob.logprob;
        }
        EXPECT_GT(mix.stats.speculation.drafts, 0);
      }
    }
  }
}

// Because of the bias, every sampled token would be the stop token 7, but min_new_tokens forbids it for the
// first ten tokens. The answer must therefore end exactly there, in the middle of a path.
TEST_F(TreeSpeculationTest, RowsCountTheDraftsBeforeThemOnTheirPath) {
  GenerateRequest request = greedy_request(kPrompts[0], 40);
  request.sampling.ignore_eos = false;
  request.sampling.stop_token_ids = {7};
  request.sampling.logit_bias = {{7, 100.0F}};
  request.sampling.min_new_tokens = 10;
  const auto run = [&](const EngineOptions& options) {
    GenerateRequest copy = greedy_request(kPrompts[0], 40);
    copy.sampling = request.sampling;
    return testing::run(*make_engine(*backend_, options), std::move(copy)).last;
  };
  const auto expected = run(SpeculatingModelTest::options_of(0));
  for (const Tree& tree : kTrees) {
    SCOPED_TRACE(tree.width);
    const auto got = run(options_of(tree));
    EXPECT_EQ(got.finish_reason, FinishReason::kStopToken);
    EXPECT_EQ(got.completion_tokens, expected.completion_tokens);
  }
}

// With certain acceptance a step accepts the path of best children, and with none only its first token.
TEST_F(TreeSpeculationTest, SimulatedAcceptanceFollowsTheBestChildren) {
  for (const double chance : {0.0, 1.0}) {
    EngineOptions options = options_of(kUsualTree);
    options.simulated_acceptance = {chance, chance, chance};
    const CheckedEngine engine = make_engine(*backend_, options);
    const SpeculationCounts counts = testing::run(*engine, greedy_request(kPrompts[0], 100)).last.speculation;
    if (chance == 0.0) {
      EXPECT_EQ(counts.accepted, 0);
    } else {
      EXPECT_GE(counts.accepted, counts.verifications);
    }
  }
}

TEST_F(TreeSpeculationTest, NoRowPassesTheContextOrTheLimit) {
  for (const int64_t max_new : {1, 2, 3, 9}) {
    // The prompt and the answer fill the context, and the pool to its last row.
    EngineOptions options = options_of(kTrees[4]);
    options.max_total_tokens = 64;
    options.context_length = 64;
    const Finished finished = testing::run(*make_engine(*backend_, options),
                                           greedy_request(random_prompt(64 - max_new, 9), max_new));
    EXPECT_EQ(finished.last.completion_tokens, max_new);
    EXPECT_EQ(finished.last.finish_reason, FinishReason::kLength);
  }
}

}  // namespace
}  // namespace hadal
