// Runs speculation on the GPU over the bundled model, which has the NextN layer. A row's bits depend on the
// number of rows beside it, so tokens with and without it are compared by the rule of the two best logits.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cuda/engine/tiny_model_test.h"
#include "tests/engine/request_mix.h"

namespace hadal {
namespace {

using testing::CheckedEngine;
using testing::Collector;
using testing::expect_same_mix;
using testing::Finished;
using testing::greedy_request;
using testing::kNumRequests;
using testing::MixResult;
using testing::random_prompt;

// Prompts in the model's own language: an addition, a story and a list to sort.
const std::vector<std::vector<int32_t>> kPrompts = {
    {0, 739, 1214, 223, 20, 19, 25, 20, 23, 22, 348, 223, 26, 21, 24, 24, 16},
    {0, 1525, 1524, 265, 1273, 643, 420, 265, 1685, 786, 569, 675, 265, 1192, 16, 223},
    {0,  747, 627, 2563, 28, 223, 19, 25, 14,  223, 22, 14, 223, 27, 27,
     14, 223, 20,  21,   14, 223, 26, 14, 223, 24,  19, 14, 223, 23, 16}};

class SpeculationTest : public testing::TinyModelTest {
 protected:
  static void SetUpTestSuite() {
    pool_ = std::make_unique<ThreadPool>(2);
    backend_ = load({}, KernelSet::kOptimised, /*with_nextn=*/true);
  }

  static EngineOptions options_of(int64_t width, bool overlap = true) {
    EngineOptions options;
    options.max_total_tokens = 16384;
    options.max_running_requests = 32;
    options.chunked_prefill_size = 96;
    options.context_length = 1024;
    options.decode_log_interval = 0;
    options.speculation_width = width;
    options.overlap_schedule = overlap;
    return options;
  }
  static CheckedEngine make_engine(const EngineOptions& options) {
    return CheckedEngine(Engine::create(*backend_, options).value());
  }
  // Runs requests that are all queued before the first step, and of which request i has been made by
  // make(i).
  template <typename Make>
  static std::vector<Finished> run_all(const EngineOptions& options, int count, const Make& make) {
    const CheckedEngine engine = make_engine(options);
    const auto sink = std::make_shared<Collector>();
    std::vector<RequestId> ids;
    engine->pause();
    for (int i = 0; i < count; ++i) {
      GenerateRequest request = make(i);
      request.sampling.seed = request.sampling.seed.value_or(7);
      request.sink = sink;
      ids.push_back(engine->submit(std::move(request)).value());
    }
    engine->resume();
    sink->wait_finished(count);
    std::vector<Finished> finished;
    for (const RequestId id : ids) finished.push_back(sink->result(id));
    return finished;
  }
  static std::vector<Finished> run_prompts(const EngineOptions& options) {
    return run_all(options, 9, [](int i) {
      std::vector<int32_t> ids = kPrompts[i % 3];
      if (i >= 3) ids.insert(ids.end() - 1, 300 + i);
      if (i >= 6) {
        const std::vector<int32_t> before = random_prompt(90, i);
        ids.insert(ids.begin(), before.begin(), before.end());
      }
      GenerateRequest request = greedy_request(std::move(ids), 60);
      request.logprobs = {.enabled = true, .top_num = 2};
      return request;
    });
  }
};

double gap_of(const TokenLogprob& logprob) {
  return static_cast<double>(logprob.top.at(0).second) - logprob.top.at(1).second;
}

// Expects equal greedy tokens wherever the gap of the expected ones exceeds ten times the error of the gaps,
// and returns how many are equal.
int64_t expect_greedy(const std::vector<Finished>& expected, const std::vector<Finished>& got) {
  double squares = 0.0;
  int64_t num_compared = 0;
  std::vector<std::pair<size_t, size_t>> differences;  // request, position
  int64_t num_equal = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(got[i].ids.size(), expected[i].ids.size()) << i;
    EXPECT_EQ(got[i].logprobs.size(), got[i].ids.size()) << i;
    for (size_t k = 0; k < std::min(expected[i].ids.size(), got[i].ids.size()); ++k) {
      const TokenLogprob& a = expected[i].logprobs.at(k);
      const TokenLogprob& b = got[i].logprobs.at(k);
      EXPECT_EQ(b.token_id, got[i].ids[k]);
      if (a.token_id != b.token_id) {
        differences.emplace_back(i, k);
        break;
      }
      ++num_equal;
      if (a.top.at(1).first != b.top.at(1).first) continue;
      squares += std::pow(gap_of(a) - gap_of(b), 2);
      ++num_compared;
    }
  }
  EXPECT_GT(num_compared, 20);
  const double error = std::sqrt(squares / static_cast<double>(std::max<int64_t>(num_compared, 1)));
  std::printf("gaps differ by %.2e, %d requests continue differently\n", error,
              static_cast<int>(differences.size()));
  for (const auto& [i, k] : differences)
    EXPECT_LE(gap_of(expected[i].logprobs[k]), 10.0 * error) << "request " << i << ", token " << k;
  return num_equal;
}

TEST_F(SpeculationTest, GreedyTokensAreThoseWithoutIt) {
  const std::vector<Finished> expected = run_prompts(options_of(0));
  for (const int64_t width : {1, 2, 4}) {
    SCOPED_TRACE(width);
    const std::vector<Finished> got = run_prompts(options_of(width));
    const int64_t num_equal = expect_greedy(expected, got);
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
  const std::vector<int32_t>& ids = kPrompts[2];
  const int64_t num_rows = std::ssize(ids) - 1;
  const KvLayout layout{.format = KvFormat::kBF16};
  // A prompt, and decode rows of one sequence.
  for (const int64_t num_prefill : {num_rows, num_rows - 6}) {
    SCOPED_TRACE(num_prefill);
    ForwardBatch batch;
    for (int32_t i = 0; i < num_rows; ++i) {
      batch.token_ids.push_back(ids[i]);
      batch.positions.push_back(i);
      batch.slots.push_back(i);
      batch.logit_rows.push_back(i);
      if (i < num_prefill) continue;
      batch.decode_seq_idx.push_back(0);
      batch.decode_kv_len.push_back(i + 1);
    }
    const auto q_len = static_cast<int32_t>(num_prefill);
    batch.segments = {{.seq_idx = 0, .q_begin = 0, .q_len = q_len, .kv_len = q_len}};
    batch.num_prefill_tokens = num_prefill;
    batch.page_table = {0};
    batch.page_table_stride = 1;
    std::vector<float> logits[2], nextn[2];
    Backend* const backends[] = {cpu.get(), backend_.get()};
    for (int device = 0; device < 2; ++device) {
      const auto runner = backends[device]->make_runner(2, num_rows, layout).value();
      ASSERT_TRUE(runner->has_nextn());
      const ForwardRows rows = runner->forward_with_hidden(batch);
      logits[device].assign(rows.logits.begin(), rows.logits.end());
      const std::vector<float> hidden(rows.hidden.begin(), rows.hidden.end());
      ForwardBatch next = batch;
      next.token_ids.assign(ids.begin() + 1, ids.end());
      const ForwardRows drafts = runner->forward_nextn(next, hidden);
      nextn[device].assign(drafts.logits.begin(), drafts.logits.end());
      EXPECT_EQ(std::ssize(drafts.hidden), num_rows * backend_->config().hidden_size);
      if (device == 1) {  // the same pass without hidden states gives the same logits
        const std::span<const float> plain = runner->forward(batch);
        double most = 0.0;
        for (size_t i = 0; i < plain.size(); ++i)
          most = std::max(most, std::abs(static_cast<double>(plain[i]) - logits[1][i]));
        EXPECT_LE(most, 1e-3) << "all rows have logits, so that both passes compute the same rows";
      }
    }
    const auto relative_error = [](const std::vector<float>& got, const std::vector<float>& want) {
      double difference = 0.0;
      double norm = 0.0;
      EXPECT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        difference += std::pow(static_cast<double>(got[i]) - want[i], 2);
        norm += std::pow(static_cast<double>(want[i]), 2);
      }
      return std::sqrt(difference / norm);
    };
    const double of_target = relative_error(logits[1], logits[0]);
    const double of_nextn = relative_error(nextn[1], nextn[0]);
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

// Nine requests are in one bucket with padding, three end earlier than the others, and widths change where
// the policy chooses them.
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
          EXPECT_NE(finished.last.finish_reason, FinishReason::kAbort) << finished.last.matched;
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

// Token 7 would always be sampled, and min_new_tokens forbids it for the first ten, so the answer ends in the
// middle of a step exactly there.
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

// What an executor that rests, or does not, samples for one request in steps of these widths.
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

// The records of 40 tokens are not made while the request rests; those of the last 32 are made up.
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
  const auto ranks = load({.tp = 2});
  EXPECT_NE(message_of(*ranks).find("several GPUs"), std::string::npos) << message_of(*ranks);
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
