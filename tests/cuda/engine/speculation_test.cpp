// Runs speculation on the GPU over the bundled model, which has the NextN layer.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cuda/engine/speculating_model_test.h"

namespace hadal {
namespace {

using testing::CheckedEngine;
using testing::Finished;
using testing::greedy_request;
using testing::kNumRequests;
using testing::kPrompts;
using testing::MixResult;
using testing::random_prompt;
using testing::relative_error;

class SpeculationTest : public testing::SpeculatingModelTest {
 protected:
  static CheckedEngine make_engine(const EngineOptions& options) {
    return SpeculatingModelTest::make_engine(*backend_, options);
  }
  template <typename Make>
  static std::vector<Finished> run_all(const EngineOptions& options, int count, const Make& make) {
    return SpeculatingModelTest::run_all(*backend_, options, count, make);
  }
  static std::vector<Finished> run_prompts(const EngineOptions& options) {
    return SpeculatingModelTest::run_prompts(*backend_, options);
  }
};

TEST_F(SpeculationTest, GreedyTokensAreThoseWithoutIt) {
  const std::vector<Finished> expected = run_prompts(options_of(0));
  for (const int64_t width : {1, 2, 4}) {
    SCOPED_TRACE(width);
    const std::vector<Finished> got = run_prompts(options_of(width));
    const int64_t num_equal = testing::expect_greedy(expected, got);
    EXPECT_GT(num_equal, 9 * 60 / 2);
    for (const Finished& finished : got) {
      const SpeculationCounts& counts = finished.last.speculation;
      EXPECT_EQ(counts.tokens, 59);  // the prompt's step samples the first token
      EXPECT_EQ(counts.tokens, counts.verifications + counts.accepted);
      EXPECT_LE(counts.drafts, counts.verifications * (width - 1));
      EXPECT_EQ(counts.drafts > 0, width > 1);
    }
  }
}

TEST_F(SpeculationTest, DraftsAreAcceptedAsOnTheCpu) {
  const auto cpu = load({}, KernelSet::kOptimised, true, DeviceType::kCpu);
  SpeculationCounts counts[2];
  Backend* const backends[] = {cpu.get(), backend_.get()};
  for (int device = 0; device < 2; ++device) {
    const CheckedEngine engine(Engine::create(*backends[device], options_of(4)).value());
    for (const std::vector<int32_t>& prompt : kPrompts)
      counts[device] += testing::run(*engine, greedy_request(prompt, 60)).last.speculation;
  }
  std::printf("accept length: CPU %.2f, GPU %.2f\n", counts[0].accept_length(), counts[1].accept_length());
  EXPECT_GT(counts[1].accept_length(), 1.5);
  EXPECT_NEAR(counts[1].accept_length(), counts[0].accept_length(), 0.5);
}

TEST_F(SpeculationTest, TheNextnLayersLogitsAreTheCpus) {
  const auto cpu = load({}, KernelSet::kOptimised, true, DeviceType::kCpu);
  // This is text, because close calls of the router would be many among random tokens.
  for (const int64_t num_decoded : {0, 6}) {
    SCOPED_TRACE(num_decoded);
    const NextnLogits want = nextn_logits(*cpu, num_decoded);
    const NextnLogits got = nextn_logits(*backend_, num_decoded);
    const double of_target = relative_error(got.target, want.target);
    const double of_nextn = relative_error(got.nextn, want.nextn);
    std::printf("relative error: target %.2e, NextN %.2e\n", of_target, of_nextn);
    EXPECT_LE(of_target, 0.2);  // the GPU quantises activations, too
    EXPECT_LE(of_nextn, 0.2);
  }
}

TEST_F(SpeculationTest, EqualBatchesGiveEqualBits) {
  const auto make = [](int i) {
    GenerateRequest request = testing::mixed_request(1, i);
    request.constraint.reset();  // a row whose mask is late leaves the batch
    return request;
  };
  const std::vector<Finished> once = run_all(options_of(4, false), kNumRequests, make);
  const std::vector<Finished> again = run_all(options_of(4, false), kNumRequests, make);
  for (int i = 0; i < kNumRequests; ++i) {
    SCOPED_TRACE(i);
    testing::expect_same(once[i], again[i]);
  }
}

TEST_F(SpeculationTest, AStepOfVerificationsIsAGraph) {
  for (const bool use_graphs : {true, false}) {
    EngineOptions options = options_of(4, false);
    options.device.use_graphs = use_graphs;
    const CheckedEngine engine = make_engine(options);
    testing::run(*engine, greedy_request(kPrompts[0], 40));
    EXPECT_EQ(engine->stats().decode_graphed, use_graphs);
  }
}

// Nine requests are in one bucket with padding, and three end earlier than the others. Widths change in the
// runs in which the policy chooses them.
TEST_F(SpeculationTest, GraphsGiveTheBitsOfKernelsOneByOne) {
  for (const int64_t width : {2, 4}) {
    for (const int count : {1, 3, 9}) {
      for (const bool adapts : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << "width " << width << ", requests " << count << ", adapts " << adapts);
        const auto answers = [&](bool use_graphs) {
          EngineOptions options = options_of(width, false);
          options.device.use_graphs = use_graphs;
          options.speculation_adapts = adapts;
          return run_all(options, count, [](int i) {
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

// Requests run one at a time, so that both loops compute the same batches.
TEST_F(SpeculationTest, TheOverlappedLoopChangesNoBitOfARequestAlone) {
  const auto run = [](bool overlap) {
    EngineOptions options = options_of(4, overlap);
    options.max_running_requests = 1;
    options.enable_radix_cache = false;  // drafts, and so the rows of steps, would depend on what it keeps
    options.mask_wait_share = std::numeric_limits<double>::infinity();
    return run_all(options, 12, [](int i) { return testing::mixed_request(3, i); });
  };
  const std::vector<Finished> plain = run(false);
  const std::vector<Finished> overlapped = run(true);
  for (size_t i = 0; i < plain.size(); ++i) {
    SCOPED_TRACE(i);
    testing::expect_same(plain[i], overlapped[i]);
    EXPECT_EQ(plain[i].last.finish_reason, overlapped[i].last.finish_reason);
  }
}

// The mix has grammars, penalties, biases, ends, stop conditions, log-probabilities and shared beginnings.
TEST_F(SpeculationTest, EveryKindOfRequestCompletesUnderEverySchedule) {
  for (const int64_t width : {2, 4}) {
    for (const bool overlap : {false, true}) {
      for (const int64_t tokens : {int64_t{16384}, int64_t{64 * 9}}) {
        SCOPED_TRACE(::testing::Message() << "width " << width << " overlap " << overlap << " " << tokens);
        EngineOptions options = options_of(width, overlap);
        options.max_total_tokens = tokens;
        options.schedule_conservativeness = tokens < 16384 ? 0.05 : 1.0;  // admits too many on purpose
        const MixResult mix = testing::run_mix(make_engine(options), 4);
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

TEST_F(SpeculationTest, AbortsAtAnyMomentLeaveTheOthersRunning) {
  const MixResult mix = testing::run_mix(make_engine(options_of(4)), 6, /*with_aborts=*/true);
  for (int i = 0; i < kNumRequests; ++i) {
    if (testing::is_aborted(6, i)) continue;
    EXPECT_NE(mix.finished[i].last.finish_reason, FinishReason::kAbort) << i;
  }
}

// Because of the bias, every sampled token would be the stop token 7, but min_new_tokens forbids it for the
// first ten tokens. The answer must therefore end exactly there, in the middle of a step.
TEST_F(SpeculationTest, RowsCountTheDraftsBeforeThem) {
  std::vector<int64_t> counts;
  for (const int64_t width : {0, 2, 4}) {
    SCOPED_TRACE(width);
    const CheckedEngine engine = make_engine(options_of(width));
    GenerateRequest request = greedy_request(kPrompts[0], 40);
    request.sampling.ignore_eos = false;
    request.sampling.stop_token_ids = {7};
    request.sampling.logit_bias = {{7, 100.0F}};
    request.sampling.min_new_tokens = 10;
    const Finished finished = testing::run(*engine, std::move(request));
    EXPECT_EQ(finished.last.finish_reason, FinishReason::kStopToken);
    counts.push_back(finished.last.completion_tokens);
  }
  EXPECT_GE(counts[0], 10);
  EXPECT_EQ(counts, std::vector<int64_t>(3, counts[0]));
}

TEST_F(SpeculationTest, PenaltiesAndSeedsMostlyChooseTheSameTokens) {
  const auto make = [](int i) {
    GenerateRequest request = greedy_request(kPrompts[i % 3], 40);
    request.sampling.temperature = i < 3 ? 0.0F : 0.6F;
    request.sampling.seed = 11 + i;
    if (i % 2 == 0) request.sampling.repetition_penalty = 1.3F;
    if (i % 2 == 1) request.sampling.frequency_penalty = 0.8F;
    return request;
  };
  const std::vector<Finished> expected = run_all(options_of(0), 6, make);
  const std::vector<Finished> got = run_all(options_of(4), 6, make);
  size_t num_equal = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    size_t k = 0;
    while (k < expected[i].ids.size() && k < got[i].ids.size() && expected[i].ids[k] == got[i].ids[k]) ++k;
    std::printf("request %zu: the first %zu tokens are equal\n", i, k);
    num_equal += k;
  }
  EXPECT_GT(num_equal, 6 * 40 / 3);
}

TEST_F(SpeculationTest, SimulatedAcceptanceIsThatOfTheCpu) {
  const auto cpu = load({}, KernelSet::kOptimised, true, DeviceType::kCpu);
  Backend* const backends[] = {cpu.get(), backend_.get()};
  for (const std::vector<double>& chances :
       {std::vector{0.92, 0.72, 0.36}, std::vector{1.0}, std::vector{0.0}}) {
    SpeculationCounts counts[2];
    for (int device = 0; device < 2; ++device) {
      EngineOptions options = options_of(4);
      options.simulated_acceptance = chances;
      const CheckedEngine engine(Engine::create(*backends[device], options).value());
      GenerateRequest request = greedy_request(kPrompts[0], 200);
      request.sampling.seed = 5;
      counts[device] = testing::run(*engine, std::move(request)).last.speculation;
    }
    EXPECT_EQ(counts[0].verifications, counts[1].verifications);
    EXPECT_EQ(counts[0].accepted, counts[1].accepted);
    EXPECT_EQ(counts[0].drafts, counts[1].drafts);
  }
}

// Holds what an executor samples for one request in steps of given widths, where width 1 means no drafts.
struct Walk {
  std::vector<int32_t> tokens;
  std::vector<int64_t> accepted;  // drafts of each step
};
Walk walk(StepExecutor& executor, const std::vector<int32_t>& prompt, const std::vector<int32_t>& widths) {
  constexpr int32_t kPages = 4;
  Walk walk;
  for (size_t i = 0; i <= widths.size(); ++i) {
    StagedStep step;
    step.step = static_cast<int64_t>(i) + 1;
    ForwardBatch& batch = step.batch;
    batch.page_table_stride = kPages;
    for (int32_t page = 0; page < kPages; ++page) batch.page_table.push_back(page);
    step.samples.push_back({.slot = 0});
    if (i == 0) {  // the prompt, as tokens that are computed again
      SlotStart& start = step.slots.emplace_back();
      start.sampling.temperature = 0.0F;
      batch.token_ids = prompt;
      for (size_t p = 0; p < prompt.size(); ++p) {
        batch.positions.push_back(static_cast<int32_t>(p));
        batch.slots.push_back(static_cast<int64_t>(p));
        batch.decode_seq_idx.push_back(0);
        batch.decode_kv_len.push_back(static_cast<int32_t>(p) + 1);
        step.next_ids.push_back(p + 1 < prompt.size() ? prompt[p + 1] : -1);
      }
      batch.logit_rows = {static_cast<int32_t>(prompt.size()) - 1};
      step.samples[0].position = std::ssize(prompt);
    } else {
      step.verifies.push_back({.seq_idx = 0, .max_rows = widths[i - 1], .end_position = kPages * kPageSize});
    }
    executor.launch(std::move(step));
    const StepOutput output = executor.wait();
    EXPECT_EQ(output.error, "");
    const SampledToken& sample = output.samples.at(0);
    EXPECT_EQ(sample.error, "");
    walk.tokens.push_back(sample.token);
    for (const ChosenToken& chosen : sample.further) walk.tokens.push_back(chosen.token);
    if (i > 0) walk.accepted.push_back(std::ssize(sample.further));
  }
  return walk;
}

// While the request has no drafts, up to 40 tokens get no records in the NextN layer. Those of the last 32
// tokens are computed afterwards.
TEST_F(SpeculationTest, ARequestThatRestedGetsDraftsAsGoodAsOneThatDidNot) {
  for (const int num_rests : {1, 5, 40}) {
    SCOPED_TRACE(num_rests);
    std::vector<int32_t> widths(static_cast<size_t>(num_rests), 1);
    widths.insert(widths.end(), 12, 4);
    int64_t accepted[2] = {0, 0};
    for (const std::vector<int32_t>& prompt : kPrompts) {
      std::vector<int32_t> tokens[2];
      for (const bool rests : {false, true}) {
        EngineOptions options = options_of(4);
        options.speculation_adapts = rests;
        const auto executor = backend_->make_executor(options).value();
        const Walk walked = walk(*executor, prompt, widths);
        for (const int64_t count : walked.accepted) accepted[rests ? 1 : 0] += count;
        tokens[rests ? 1 : 0].assign(walked.tokens.begin(), walked.tokens.begin() + num_rests + 6);
      }
      size_t num_equal = 0;
      while (num_equal < tokens[0].size() && tokens[0][num_equal] == tokens[1][num_equal]) ++num_equal;
      std::printf("%zu of %zu tokens are equal\n", num_equal, tokens[0].size());
    }
    std::printf("%d rests: %d drafts accepted without rest, %d after it\n", num_rests,
                static_cast<int>(accepted[0]), static_cast<int>(accepted[1]));
    EXPECT_GE(accepted[0], 20);
    EXPECT_GE(accepted[1] * 10, accepted[0] * 8);
  }
}

TEST_F(SpeculationTest, APrefixHitIsOneTokenShorter) {
  for (const int64_t width : {0, 4}) {
    const CheckedEngine engine = make_engine(options_of(width));
    const std::vector<int32_t> prompt = random_prompt(150, 5);
    testing::run(*engine, greedy_request(prompt, 1));
    std::vector<int32_t> longer = prompt;
    longer.push_back(3);
    EXPECT_EQ(testing::run(*engine, greedy_request(longer, 1)).last.cached_tokens, width == 0 ? 150 : 149);
  }
}

TEST_F(SpeculationTest, NoRowPassesTheContextOrTheLimit) {
  for (const int64_t max_new : {1, 2, 3, 5}) {
    // The prompt and the answer fill the context, and the pool to its last row.
    EngineOptions options = options_of(8);
    options.max_total_tokens = 64;
    options.context_length = 64;
    const Finished finished =
        testing::run(*make_engine(options), greedy_request(random_prompt(64 - max_new, 9), max_new));
    EXPECT_EQ(finished.last.completion_tokens, max_new);
    EXPECT_EQ(finished.last.finish_reason, FinishReason::kLength);
  }
}

TEST_F(SpeculationTest, WhatCannotSpeculateSaysSo) {
  const auto message_of = [](Backend& backend) {
    return Engine::create(backend, options_of(4)).status().message;
  };
  const auto without = load({});
  EXPECT_NE(message_of(*without).find("no NextN layer"), std::string::npos) << message_of(*without);
}

// The NextN layer needs a layer of the cache, so the same memory has room for fewer tokens.
TEST_F(SpeculationTest, TheCacheHasALayerForNextn) {
  const auto without = load({});
  const auto tokens_of = [](Backend& backend, int64_t width) {
    EngineOptions options = options_of(width);
    options.max_total_tokens = 0;
    EXPECT_TRUE(backend.size_cache(options).ok());
    return options.max_total_tokens;
  };
  const auto layers = static_cast<double>(backend_->config().num_hidden_layers);
  const double ratio =
      static_cast<double>(tokens_of(*backend_, 4)) / static_cast<double>(tokens_of(*without, 0));
  EXPECT_LT(ratio, layers / (layers + 1.0) * 1.001);
  EXPECT_GT(ratio, layers / (layers + 1.0) * 0.9);
}

}  // namespace
}  // namespace hadal
