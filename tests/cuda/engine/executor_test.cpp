// Runs the engine over the GPU's executor, on the bundled model. Equal batches must give equal bits however
// they are launched, and every kind of request must complete under every schedule. tests/cuda/e2e_*.py checks
// whether the numbers are right.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/step_executor.h"
#include "tests/cuda/engine/tiny_model_test.h"
#include "tests/engine/test_requests.h"

namespace hadal {
namespace {

using testing::ChainConstraint;
using testing::CheckedEngine;
using testing::Collector;
using testing::Finished;
using testing::greedy_request;
using testing::random_prompt;

constexpr int kNumRequests = 20;

// Returns request i of a mix, which is always the same one. The mix has sampling of every kind, constraints,
// scores and shared beginnings.
GenerateRequest mixed_request(uint64_t seed, int i) {
  std::mt19937_64 random(seed * 1000 + i);
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  std::vector<int32_t> ids = random_prompt(1 + below(150), seed * 1000 + i);
  if (below(3) == 0) {
    const std::vector<int32_t> shared = random_prompt(100, seed * 7 + below(2));
    ids.insert(ids.begin(), shared.begin(), shared.end());
  }
  const auto prompt_len = static_cast<int64_t>(ids.size());
  GenerateRequest request = greedy_request(std::move(ids), 1 + below(50));
  SamplingParams& sampling = request.sampling;
  if (below(2) == 0) {
    sampling.temperature = 0.5F + 0.1F * static_cast<float>(below(10));
    sampling.seed = below(1 << 20);
    if (below(2) == 0) sampling.top_p = 0.9F;
    if (below(2) == 0) sampling.top_k = 20;
    if (below(3) == 0) sampling.min_p = 0.05F;
  }
  if (below(4) == 0) sampling.frequency_penalty = 0.7F;
  if (below(4) == 0) sampling.repetition_penalty = 1.3F;
  if (below(4) == 0) sampling.logit_bias = {{static_cast<int32_t>(below(testing::kVocab)), 3.0F}};
  if (below(4) == 0) {
    sampling.ignore_eos = false;
    sampling.min_new_tokens = sampling.max_new_tokens / 2;
  }
  if (below(2) == 0) {
    request.logprobs = {.enabled = true,
                        .start = below(2) == 0 ? below(static_cast<uint64_t>(prompt_len)) : -1,
                        .top_num = below(3)};
  }
  if (below(3) == 0) request.constraint = std::make_unique<ChainConstraint>();
  return request;
}

class ExecutorTest : public testing::TinyModelTest {
 protected:
  static EngineOptions base_options() {
    EngineOptions options;
    options.max_total_tokens = 16384;
    options.max_running_requests = 24;
    options.chunked_prefill_size = 96;
    options.context_length = 1024;
    options.decode_log_interval = 0;
    options.device.graph_max_bs = 16;  // larger batches run without graphs
    return options;
  }

  enum class Constraints { kSome, kNone };

  // All requests are queued before the first step, so equal options give equal batches if no request has a
  // constraint: a row whose mask is late leaves the batch, which depends on the time.
  static std::vector<Finished> run_mix(uint64_t seed, const EngineOptions& options, Constraints constraints,
                                       int num_requests = kNumRequests) {
    const CheckedEngine engine(Engine::create(*backend_, options).value());
    const auto sink = std::make_shared<Collector>();
    std::vector<RequestId> ids;
    engine->pause();
    for (int i = 0; i < num_requests; ++i) {
      GenerateRequest request = mixed_request(seed, i);
      request.sampling.seed = request.sampling.seed.value_or(7);
      request.sink = sink;
      if (constraints == Constraints::kNone) request.constraint.reset();
      ids.push_back(engine->submit(std::move(request)).value());
    }
    engine->resume();
    sink->wait_finished(num_requests);
    std::vector<Finished> finished;
    for (const RequestId id : ids) finished.push_back(sink->result(id));
    return finished;
  }

  static void expect_same_mix(const std::vector<Finished>& a, const std::vector<Finished>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      SCOPED_TRACE(i);
      testing::expect_same(a[i], b[i]);
      EXPECT_EQ(a[i].last.finish_reason, b[i].last.finish_reason);
    }
  }

  static void expect_sound(const std::vector<Finished>& mix) {
    for (const Finished& finished : mix) {
      EXPECT_NE(finished.last.finish_reason, FinishReason::kAbort) << finished.last.abort_text;
      for (const auto* logprobs : {&finished.logprobs, &finished.prompt_logprobs}) {
        for (const TokenLogprob& logprob : *logprobs) {
          EXPECT_TRUE(std::isfinite(logprob.logprob) && logprob.logprob <= 1e-4F) << logprob.logprob;
          for (size_t i = 1; i < logprob.top.size(); ++i)
            EXPECT_GE(logprob.top[i - 1].second, logprob.top[i].second);
        }
      }
    }
  }
};

TEST_F(ExecutorTest, EqualBatchesGiveEqualBits) {
  EngineOptions options = base_options();
  options.overlap_schedule = false;
  const std::vector<Finished> graphed = run_mix(1, options, Constraints::kNone);
  expect_sound(graphed);
  {
    SCOPED_TRACE("again");
    expect_same_mix(graphed, run_mix(1, options, Constraints::kNone));
  }
  {
    SCOPED_TRACE("eager");
    options.device.use_graphs = false;
    expect_same_mix(graphed, run_mix(1, options, Constraints::kNone));
  }
}

TEST_F(ExecutorTest, PaddingChangesNoBit) {
  EngineOptions options = base_options();
  options.overlap_schedule = false;
  const std::vector<Finished> padded = run_mix(2, options, Constraints::kNone);
  options.device.pad_graphs = false;
  expect_same_mix(padded, run_mix(2, options, Constraints::kNone));
}

// Requests run one at a time, so that both loops compute the same batches.
TEST_F(ExecutorTest, TheOverlappedLoopChangesNoBitOfARequestAlone) {
  EngineOptions options = base_options();
  options.max_running_requests = 1;
  options.overlap_schedule = false;
  const std::vector<Finished> plain = run_mix(3, options, Constraints::kSome, 10);
  expect_sound(plain);
  options.overlap_schedule = true;
  expect_same_mix(plain, run_mix(3, options, Constraints::kSome, 10));
  options.device.use_graphs = false;
  expect_same_mix(plain, run_mix(3, options, Constraints::kSome, 10));
}

TEST_F(ExecutorTest, EveryRequestCompletesWhenPagesRunOut) {
  EngineOptions options = base_options();
  options.max_total_tokens = 64 * 9;
  options.schedule_conservativeness = 0.05;  // admits too many on purpose
  for (const bool overlap : {false, true}) {
    SCOPED_TRACE(overlap);
    options.overlap_schedule = overlap;
    const std::vector<Finished> mix = run_mix(4, options, Constraints::kSome);
    expect_sound(mix);
    for (int i = 0; i < kNumRequests; ++i) EXPECT_GT(mix[i].ids.size(), 0U) << i;
  }
}

// A step scores at most kMaxScoredRows tokens, also of prompts that are not cut otherwise. The kernels of
// small and large steps differ, and so do the last bits of their scores.
TEST_F(ExecutorTest, MoreScoredTokensThanAStepHasRowsForGiveTheScoresOfShortChunks) {
  constexpr int kNumPrompts = 3;
  constexpr int64_t kPromptLen = 2 * kMaxScoredRows + 100;
  EngineOptions options = base_options();
  options.context_length = 4096;
  const auto scores_with = [&](int64_t chunk) {
    options.chunked_prefill_size = chunk;
    const CheckedEngine engine(Engine::create(*backend_, options).value());
    const auto sink = std::make_shared<Collector>();
    std::vector<RequestId> ids;
    for (int i = 0; i < kNumPrompts; ++i) {
      GenerateRequest request = greedy_request(random_prompt(kPromptLen, 900 + i), 2);
      request.logprobs = {.enabled = true, .start = 0, .top_num = i};
      request.sink = sink;
      ids.push_back(engine->submit(std::move(request)).value());
    }
    sink->wait_finished(kNumPrompts);
    std::vector<Finished> finished;
    for (const RequestId id : ids) finished.push_back(sink->result(id));
    expect_sound(finished);
    return finished;
  };
  const std::vector<Finished> expected = scores_with(96);
  for (const int64_t chunk : {int64_t{8192}, int64_t{-1}}) {
    SCOPED_TRACE(chunk);
    const std::vector<Finished> found = scores_with(chunk);
    double difference = 0.0;
    for (int i = 0; i < kNumPrompts; ++i) {
      ASSERT_EQ(found[i].prompt_logprobs.size(), static_cast<size_t>(kPromptLen - 1));
      for (size_t at = 0; at < found[i].prompt_logprobs.size(); ++at) {
        const TokenLogprob& score = found[i].prompt_logprobs[at];
        const TokenLogprob& other = expected[i].prompt_logprobs[at];
        ASSERT_EQ(score.token_id, other.token_id) << at;
        ASSERT_EQ(score.top.size(), static_cast<size_t>(i)) << at;
        difference += std::abs(score.logprob - other.logprob);
      }
    }
    EXPECT_LT(difference / (kNumPrompts * (kPromptLen - 1)), 0.1);
  }
}

TEST_F(ExecutorTest, TooManyBiasesFailOneRequestAlone) {
  const CheckedEngine engine(Engine::create(*backend_, base_options()).value());
  GenerateRequest biased = greedy_request({5, 6, 7}, 4);
  for (int32_t id = 0; id < 1025; ++id) biased.sampling.logit_bias.emplace_back(id, 1.0F);
  const RequestId bad = engine->submit(std::move(biased)).value();
  const RequestId good = engine->submit(greedy_request({5, 6, 7}, 4)).value();
  EXPECT_NE(testing::drain(*engine, bad).last.abort_text.find("logit_bias"), std::string::npos);
  EXPECT_EQ(testing::drain(*engine, good).ids.size(), 4U);
}

// Returns one decode row of slot 0, whose sequence has `position` tokens before it, in pages 0, 1, …
StagedStep decode_step(int64_t step, int64_t position) {
  StagedStep staged;
  staged.step = step;
  ForwardBatch& batch = staged.batch;
  batch.token_ids = {5};
  batch.positions = {static_cast<int32_t>(position)};
  batch.slots = {position};
  batch.decode_seq_idx = {0};
  batch.decode_kv_len = {static_cast<int32_t>(position) + 1};
  batch.page_table_stride = position / kPageSize + 1;
  for (int32_t page = 0; page < batch.page_table_stride; ++page) batch.page_table.push_back(page);
  batch.logit_rows = {0};
  SlotStart& start = staged.slots.emplace_back();
  start.sampling.temperature = 0.0F;
  staged.samples.push_back({.slot = 0, .logit_row = 0, .position = position + 1});
  return staged;
}

TEST_F(ExecutorTest, AProfileCountsTheBytesOfTheCache) {
  const EngineOptions options = base_options();
  const auto executor = backend_->make_executor(options).value();
  const auto decode_bytes = [&](int64_t step, int64_t position) {
    StagedStep staged = decode_step(step, position);
    staged.profile = true;
    executor->launch(std::move(staged));
    const StepOutput output = executor->wait();
    EXPECT_EQ(output.error, "");
    for (const OpTiming& op : output.ops) {
      if (op.name == "mla_decode") return op.bytes;
    }
    return 0.0;
  };
  const double more = decode_bytes(2, 700) - decode_bytes(1, 20);
  const auto row_bytes = static_cast<double>(options.kv_layout.row_bytes());
  EXPECT_EQ(more, 680.0 * row_bytes * static_cast<double>(backend_->config().num_hidden_layers));
}

TEST_F(ExecutorTest, TheOrderOfCallsIsChecked) {
  const EngineOptions options = base_options();
  const auto executor = backend_->make_executor(options).value();
  StagedStep constrained = decode_step(1, 0);
  constrained.samples[0].constrained = true;
  executor->launch(std::move(constrained));
  EXPECT_THROW(executor->wait(), Error);                     // its masks are not set
  EXPECT_THROW(executor->launch(decode_step(2, 1)), Error);  // for the same reason
  const std::vector<uint32_t> all((static_cast<size_t>(backend_->config().vocab_size) + 31) / 32, ~0U);
  EXPECT_THROW(executor->set_masks(2, all), Error);  // this step is not in flight
  executor->set_masks(1, all);
  EXPECT_THROW(executor->set_masks(1, all), Error);  // they are set already
  constrained = decode_step(2, 1);
  constrained.samples[0].constrained = true;
  executor->launch(std::move(constrained));
  EXPECT_THROW(executor->set_masks(2, all), Error);  // step 1 has not been read
  EXPECT_EQ(executor->wait().error, "");
  executor->set_masks(2, all);
  const StepOutput output = executor->wait();
  EXPECT_EQ(output.error, "");
  EXPECT_EQ(output.step, 2);
  ASSERT_EQ(output.samples.size(), 1U);
  EXPECT_GE(output.samples[0].token, 0);
}

// A step with masks of the wrong size fails, and the steps after it compute what they would without it.
TEST_F(ExecutorTest, AFailedStepDoesNotChangeLaterOnes) {
  const EngineOptions options = base_options();
  const auto executor = backend_->make_executor(options).value();
  const auto token_of = [&](int64_t step) {
    executor->launch(decode_step(step, 0));
    const StepOutput output = executor->wait();
    EXPECT_EQ(output.error, "");
    return output.samples.at(0).token;
  };
  const int32_t before = token_of(1);
  StagedStep constrained = decode_step(2, 0);
  constrained.samples[0].constrained = true;
  executor->launch(std::move(constrained));
  executor->set_masks(2, {});
  const StepOutput failed = executor->wait();
  EXPECT_NE(failed.error, "");
  EXPECT_FALSE(failed.fatal);
  EXPECT_EQ(token_of(3), before);
}

TEST_F(ExecutorTest, ACacheThatDoesNotFitSaysSo) {
  EngineOptions options = base_options();
  options.max_total_tokens = int64_t{1} << 40;
  const auto engine = Engine::create(*backend_, options);
  EXPECT_EQ(engine.status().code, StatusCode::kResourceExhausted);
  EXPECT_NE(engine.status().message.find("--max-total-tokens"), std::string::npos) << engine.status().message;
}

}  // namespace
}  // namespace hadal
