#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <thread>

#include "engine/step_executor.h"
#include "model/info.h"
#include "tests/engine/small_model.h"
#include "tests/engine/test_requests.h"

namespace hadal {
namespace {

using testing::CheckedEngine;
using testing::drain;
using testing::Finished;
using testing::greedy_request;
using ::testing::HasSubstr;
using testing::kVocab;
using testing::random_prompt;
using ::testing::SizeIs;
using testing::StopAfter;

class EngineTest : public ::testing::TestWithParam<const char*> {
 protected:
  CheckedEngine make_engine(EngineOptions options = {}) {
    if (options.max_total_tokens == 0) options.max_total_tokens = 4096;
    options.decode_log_interval = 0;
    return CheckedEngine(Engine::create(*model_, pool_, options).value());
  }
  Finished run(Engine& engine, GenerateRequest request) { return testing::run(engine, std::move(request)); }

  ThreadPool pool_{2};
  std::unique_ptr<Model> model_ = testing::make_small_model(GetParam(), pool_);
};

INSTANTIATE_TEST_SUITE_P(Family, EngineTest, ::testing::Values("v3", "v2-lite"));

TEST_P(EngineTest, BatchMembersDoNotInfluenceEachOther) {
  const std::vector<int64_t> lengths = {1, 5, 63, 64, 65, 130};
  auto request = [&](size_t i) {
    GenerateRequest r = greedy_request(random_prompt(lengths[i], i), 12 + static_cast<int64_t>(i));
    r.logprobs.enabled = true;
    return r;
  };
  std::vector<Finished> alone;
  for (size_t i = 0; i < lengths.size(); ++i) alone.push_back(run(*make_engine(), request(i)));

  auto engine = make_engine();
  std::vector<RequestId> ids;
  for (size_t i = 0; i < lengths.size(); ++i) ids.push_back(engine->submit(request(i)).value());
  for (size_t i = 0; i < lengths.size(); ++i) expect_same(drain(*engine, ids[i]), alone[i]);
}

TEST_P(EngineTest, ChunkedPrefillGivesTheSameBits) {
  auto request = [] {
    GenerateRequest r = greedy_request(random_prompt(141, 3), 6);
    r.logprobs = {.enabled = true, .start = 0};
    return r;
  };
  const Finished whole = run(*make_engine(), request());
  EXPECT_THAT(whole.prompt_logprobs, SizeIs(140));
  for (const int64_t chunk : {1, 7, 64, 100, -1}) {
    const Finished chunked = run(*make_engine({.chunked_prefill_size = chunk}), request());
    expect_same(chunked, whole);
  }
}

// A step scores at most kMaxScoredRows tokens, so one of these prompts is cut although prompts are not cut.
TEST_P(EngineTest, PromptsThatTogetherHaveMoreScoresThanAStepKeepTheirBits) {
  constexpr int64_t kPromptLen = kMaxScoredRows / 2 + 100;
  auto request = [](uint64_t seed) {
    GenerateRequest r = greedy_request(random_prompt(kPromptLen, seed), 2);
    r.logprobs = {.enabled = true, .start = 0};
    return r;
  };
  std::vector<Finished> alone;  // computed first, because engines of one model must not run at the same time
  for (uint64_t seed = 0; seed < 2; ++seed)
    alone.push_back(run(*make_engine({.chunked_prefill_size = 64}), request(seed)));
  auto engine = make_engine({.chunked_prefill_size = -1});
  std::vector<RequestId> ids;
  engine->pause();
  for (uint64_t seed = 0; seed < 2; ++seed) ids.push_back(engine->submit(request(seed)).value());
  engine->resume();
  for (uint64_t seed = 0; seed < 2; ++seed) {
    const Finished cut = drain(*engine, ids[seed]);
    EXPECT_THAT(cut.prompt_logprobs, SizeIs(kPromptLen - 1));
    expect_same(cut, alone[seed]);
  }
}

TEST_P(EngineTest, ThreadsDoNotChangeTheBits) {
  auto request = [] {
    GenerateRequest r = greedy_request(random_prompt(90, 4), 8);
    r.logprobs.enabled = true;
    return r;
  };
  const Finished two = run(*make_engine(), request());
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    auto engine = Engine::create(*model_, pool, {.max_total_tokens = 1024}).value();
    expect_same(drain(*engine, engine->submit(request()).value()), two);
  }
}

TEST_P(EngineTest, DecodeAgreesWithPrefillOfTheSameTokens) {
  GenerateRequest first = greedy_request(random_prompt(70, 5), 10);
  first.logprobs.enabled = true;
  const TokenIds prompt = first.input_ids;
  const Finished decoded = run(*make_engine({.kv_layout = {.format = KvFormat::kF32}}), std::move(first));

  std::vector<int32_t> all(prompt.begin(), prompt.end());
  all.insert(all.end(), decoded.ids.begin(), decoded.ids.end());
  GenerateRequest second = greedy_request(all, 0);
  second.logprobs = {.enabled = true, .start = static_cast<int64_t>(prompt.size()) - 1};
  const Finished prefilled = run(*make_engine({.kv_layout = {.format = KvFormat::kF32}}), std::move(second));
  ASSERT_EQ(prefilled.prompt_logprobs.size(), decoded.ids.size());
  for (size_t i = 0; i < decoded.ids.size(); ++i) {
    EXPECT_NEAR(prefilled.prompt_logprobs[i].logprob, decoded.logprobs[i].logprob, 2e-3) << i;
  }
  EXPECT_EQ(prefilled.last.finish_reason, FinishReason::kLength);
  EXPECT_TRUE(prefilled.ids.empty());
}

// Prefill runs in chunks, so that most keys are read back from the cache.
TEST_P(EngineTest, ScalesOfAnFp8CacheAreOnlyARounding) {
  const auto scores = [&](KvLayout layout, KernelSet kernels) {
    GenerateRequest request = greedy_request(random_prompt(60, 9), 0);
    request.logprobs = {.enabled = true, .start = 0};
    auto engine = make_engine({.chunked_prefill_size = 8, .kv_layout = layout, .kernels = kernels});
    std::vector<float> out;
    for (const auto& token : run(*engine, std::move(request)).prompt_logprobs) out.push_back(token.logprob);
    return out;
  };
  const auto distance = [](const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0.0;
    for (size_t i = 0; i < a.size(); ++i) sum += std::fabs(a[i] - b[i]);
    return sum / static_cast<double>(a.size());
  };
  const std::vector<float> exact = scores({KvFormat::kF32}, KernelSet::kOptimised);
  ASSERT_THAT(exact, SizeIs(59));
  const KvLayout coarse{KvFormat::kFp8E4M3, KvScales::kPerToken};
  const KvLayout fine{KvFormat::kFp8E4M3, KvScales::kPer128};
  const std::vector<float> with_coarse = scores(coarse, KernelSet::kOptimised);
  const std::vector<float> with_fine = scores(fine, KernelSet::kOptimised);
  EXPECT_NE(with_coarse, with_fine);
  EXPECT_LT(distance(exact, with_coarse), 0.05);
  EXPECT_LT(distance(exact, with_fine), 0.05);
  EXPECT_LT(distance(with_fine, scores(fine, KernelSet::kReference)), 0.01);
}

TEST_P(EngineTest, ReferenceKernelsGiveTheSameTokens) {
  const Finished fast = run(*make_engine(), greedy_request(random_prompt(40, 6), 12));
  const Finished naive =
      run(*make_engine({.kernels = KernelSet::kReference}), greedy_request(random_prompt(40, 6), 12));
  EXPECT_EQ(fast.ids, naive.ids);
}

TEST_P(EngineTest, ManyRequestsShareASmallPoolWithoutLossOrDeadlock) {
  auto engine = make_engine({.max_total_tokens = 256, .max_running_requests = 3});
  std::vector<RequestId> ids;
  for (int i = 0; i < 12; ++i) {
    ids.push_back(engine->submit(greedy_request(random_prompt(30 + 9 * i, i), 20)).value());
  }
  for (const RequestId id : ids) EXPECT_THAT(drain(*engine, id).ids, SizeIs(20));
}

TEST_P(EngineTest, SeededSamplingIsReproducibleAndIndependentOfTheBatch) {
  auto request = [](uint64_t seed) {
    GenerateRequest r = greedy_request(random_prompt(20, 8), 16);
    r.sampling.temperature = 1.0F;
    r.sampling.seed = seed;
    return r;
  };
  const std::vector<int32_t> alone = run(*make_engine(), request(1)).ids;
  auto engine = make_engine();
  const RequestId a = engine->submit(request(1)).value();
  const RequestId b = engine->submit(request(2)).value();
  const std::vector<int32_t> first = drain(*engine, a).ids;
  EXPECT_NE(first, drain(*engine, b).ids);
  EXPECT_EQ(first, alone);
}

TEST_P(EngineTest, StopTokenEndsTheRequestAndIsItsLastToken) {
  auto engine = make_engine();
  const std::vector<int32_t> free_run = run(*engine, greedy_request(random_prompt(20, 9), 16)).ids;
  GenerateRequest request = greedy_request(random_prompt(20, 9), 16);
  request.sampling.stop_token_ids = {free_run[4]};
  const Finished stopped = run(*engine, std::move(request));
  EXPECT_EQ(stopped.last.finish_reason, FinishReason::kStopToken);
  EXPECT_EQ(stopped.last.matched_token, free_run[4]);
  EXPECT_EQ(stopped.ids.back(), free_run[4]);
  EXPECT_EQ(stopped.last.completion_tokens, static_cast<int64_t>(stopped.ids.size()));
}

TEST_P(EngineTest, StopTokensMayBeGivenInAnyOrder) {
  auto engine = make_engine();
  const std::vector<int32_t> free_run = run(*engine, greedy_request(random_prompt(20, 9), 16)).ids;
  const std::set<int32_t> passed(free_run.begin(), free_run.begin() + 4);
  const auto end =
      std::find_if(free_run.begin(), free_run.end(), [&](int32_t id) { return !passed.contains(id); });
  ASSERT_NE(end, free_run.end());
  GenerateRequest request = greedy_request(random_prompt(20, 9), 16);
  for (int32_t id = testing::kVocab - 1; id >= 0; --id) {
    if (!passed.contains(id)) request.sampling.stop_token_ids.push_back(id);
  }
  EXPECT_EQ(run(*engine, std::move(request)).ids, std::vector<int32_t>(free_run.begin(), end + 1));
}

class OnlyEven final : public TokenConstraint {
 public:
  void fill_mask(std::span<uint32_t> allowed) override {
    for (uint32_t& word : allowed) word = 0x55555555U;
  }
  bool accept_token(int32_t token_id) override { return token_id % 2 == 0; }
  void rollback(int64_t) override {}
};

TEST_P(EngineTest, StopConditionsAndConstraintsAreHonoured) {
  auto engine = make_engine();
  GenerateRequest request = greedy_request(random_prompt(20, 10), 16);
  request.stop = std::make_unique<StopAfter>(5);
  request.constraint = std::make_unique<OnlyEven>();
  const Finished result = run(*engine, std::move(request));
  EXPECT_THAT(result.ids, SizeIs(5));
  EXPECT_EQ(result.last.finish_reason, FinishReason::kStopCondition);
  EXPECT_EQ(result.last.abort_text, "");
  for (const int32_t id : result.ids) EXPECT_EQ(id % 2, 0);
}

TEST_P(EngineTest, AbortFreesTheRequestAndLeavesTheOthersAlone) {
  auto engine = make_engine({.max_total_tokens = 128});
  const std::vector<int32_t> expected = run(*engine, greedy_request(random_prompt(20, 12), 10)).ids;
  const RequestId doomed = engine->submit(greedy_request(random_prompt(20, 11), 90)).value();
  const RequestId queued = engine->submit(greedy_request(random_prompt(20, 12), 10)).value();
  ASSERT_TRUE(engine->stream(doomed).has_value());
  engine->abort(doomed);
  const Finished aborted = drain(*engine, doomed);
  EXPECT_EQ(aborted.last.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(aborted.last.abort_reason, AbortReason::kClient);
  EXPECT_EQ(drain(*engine, queued).ids, expected);
  engine->abort(999);
  EXPECT_FALSE(engine->stream(999).has_value());
}

// The logits of this model are NaN wherever the previous token is kPoison.
class PoisonedModel final : public Model {
 public:
  static constexpr int32_t kPoison = 7;
  explicit PoisonedModel(Model& model) : model_(model) {}
  const ModelConfig& config() const override { return model_.config(); }
  const ModelWeights& weights() const override { return model_.weights(); }
  const ExpertStats& expert_stats() const override { return model_.expert_stats(); }
  void forward(const ForwardBatch& batch, KvCache& cache, const ForwardOutputs& outputs,
               ExecContext& exec) override {
    model_.forward(batch, cache, outputs, exec);
    for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
      if (batch.token_ids[batch.logit_rows[i]] == kPoison)
        outputs.logits[i * kVocab + kVocab / 2] = std::nanf("");
    }
  }
  void forward_nextn(const ForwardBatch& batch, const float* hidden, KvCache& cache,
                     const ForwardOutputs& outputs, ExecContext& exec) override {
    model_.forward_nextn(batch, hidden, cache, outputs, exec);
  }

 private:
  Model& model_;
};

TEST_P(EngineTest, NanLogitsEndTheirRequestAlone) {
  PoisonedModel poisoned(*model_);
  auto engine = Engine::create(poisoned, pool_, {.max_total_tokens = 4096}).value();
  GenerateRequest greedy = greedy_request({1, 2, 3}, 1);
  GenerateRequest sampled = greedy_request({1, 2, PoisonedModel::kPoison}, 8);
  sampled.sampling.temperature = 1.0F;
  sampled.logprobs.enabled = true;
  const RequestId good = engine->submit(std::move(greedy)).value();
  const RequestId bad = engine->submit(std::move(sampled)).value();
  const Finished ended = drain(*engine, bad);
  EXPECT_EQ(ended.last.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(ended.last.abort_reason, AbortReason::kFault);
  EXPECT_THAT(ended.last.abort_text, HasSubstr("NaN"));
  EXPECT_THAT(ended.ids, SizeIs(0));
  EXPECT_EQ(drain(*engine, good).last.finish_reason, FinishReason::kLength);
}

// A config keeps its end tokens when its vocabulary is cut.
class FarEosModel final : public Model {
 public:
  explicit FarEosModel(Model& model) : model_(model), config_(model.config()) {
    config_.eos_token_ids = {kVocab, 100001};
  }
  const ModelConfig& config() const override { return config_; }
  const ModelWeights& weights() const override { return model_.weights(); }
  const ExpertStats& expert_stats() const override { return model_.expert_stats(); }
  void forward(const ForwardBatch& batch, KvCache& cache, const ForwardOutputs& outputs,
               ExecContext& exec) override {
    model_.forward(batch, cache, outputs, exec);
  }
  void forward_nextn(const ForwardBatch& batch, const float* hidden, KvCache& cache,
                     const ForwardOutputs& outputs, ExecContext& exec) override {
    model_.forward_nextn(batch, hidden, cache, outputs, exec);
  }

 private:
  Model& model_;
  ModelConfig config_;
};

TEST_P(EngineTest, EndTokensOutsideTheVocabularyAreHarmless) {
  FarEosModel far(*model_);
  auto engine = Engine::create(far, pool_, {.max_total_tokens = 4096}).value();
  GenerateRequest request = greedy_request(random_prompt(20, 13), 6);
  const std::vector<int32_t> expected = run(*engine, greedy_request(random_prompt(20, 13), 6)).ids;
  request.sampling.ignore_eos = false;
  request.sampling.min_new_tokens = 6;
  EXPECT_EQ(run(*engine, std::move(request)).ids, expected);
}

class BrokenGrammar final : public TokenConstraint {
 public:
  void fill_mask(std::span<uint32_t> allowed) override { allowed[0] = 0b10U; }
  bool accept_token(int32_t) override { return false; }
  void rollback(int64_t) override {}
};

TEST_P(EngineTest, AFailingConstraintEndsItsOwnRequestOnly) {
  const std::vector<int32_t> expected = run(*make_engine(), greedy_request(random_prompt(20, 14), 8)).ids;
  auto engine = make_engine();
  GenerateRequest broken = greedy_request(random_prompt(20, 13), 8);
  broken.constraint = std::make_unique<BrokenGrammar>();
  const RequestId bad = engine->submit(std::move(broken)).value();
  const RequestId good = engine->submit(greedy_request(random_prompt(20, 14), 8)).value();
  EXPECT_EQ(drain(*engine, bad).last.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(drain(*engine, good).ids, expected);
}

TEST_P(EngineTest, PollWaitsNoLongerThanItsTimeout) {
  const std::vector<int32_t> expected = run(*make_engine(), greedy_request(random_prompt(20, 15), 3)).ids;
  auto engine = make_engine();
  engine->pause();
  const RequestId id = engine->submit(greedy_request(random_prompt(20, 15), 3)).value();
  EXPECT_FALSE(engine->poll(id, std::chrono::milliseconds(1)).has_value());
  engine->resume();
  std::vector<int32_t> ids;
  FinishReason reason = FinishReason::kNone;
  while (reason == FinishReason::kNone) {
    const std::optional<TokenChunk> chunk = engine->poll(id, std::chrono::milliseconds(10));
    if (!chunk) continue;
    ids.insert(ids.end(), chunk->token_ids.begin(), chunk->token_ids.end());
    reason = chunk->finish_reason;
  }
  EXPECT_EQ(ids, expected);
  EXPECT_FALSE(engine->poll(id, std::chrono::milliseconds(1)).has_value());
}

TEST_P(EngineTest, TwoEnginesLiveInOneProcess) {
  const std::vector<int32_t> expected = run(*make_engine(), greedy_request(random_prompt(30, 16), 8)).ids;
  ThreadPool other_pool(2);
  const std::unique_ptr<Model> other_model = testing::make_small_model(GetParam(), other_pool);
  auto first = make_engine();
  auto second = Engine::create(*other_model, other_pool, {.max_total_tokens = 512}).value();
  Finished from_second;
  std::thread runner([&] { from_second = run(*second, greedy_request(random_prompt(30, 16), 8)); });
  EXPECT_EQ(run(*first, greedy_request(random_prompt(30, 16), 8)).ids, expected);
  runner.join();
  EXPECT_EQ(from_second.ids, expected);
}

TEST_P(EngineTest, BadRequestsAreRefusedNamingTheField) {
  auto engine = make_engine({.max_total_tokens = 256});
  const auto message = [&](GenerateRequest request) {
    return engine->submit(std::move(request)).status().message;
  };
  EXPECT_THAT(message(greedy_request({}, 1)), HasSubstr("input_ids is empty"));
  EXPECT_THAT(message(greedy_request({5, -1}, 1)), HasSubstr("input_ids contains -1"));
  EXPECT_THAT(message(greedy_request({kVocab}, 1)), HasSubstr("allowed: 0 to 319"));
  EXPECT_THAT(message(greedy_request(random_prompt(1024, 1), 1)), HasSubstr("1024 tokens"));
  EXPECT_THAT(message(greedy_request(random_prompt(1000, 1), 100)), HasSubstr("allowed: at most 24"));
  EXPECT_THAT(message(greedy_request(random_prompt(250, 1), 100)), HasSubstr("allowed: 256"));
  GenerateRequest request = greedy_request({1}, 1);
  request.sampling.temperature = std::nanf("");
  EXPECT_THAT(message(std::move(request)), HasSubstr("temperature"));
  request = greedy_request({1}, 1);
  request.stream_interval = 0;
  EXPECT_THAT(message(std::move(request)), HasSubstr("stream_interval"));
  EXPECT_EQ(engine->stats().num_requests, 0);
}

TEST(DefaultCache, IsAQuarterOfWhatTheWeightsLeaveAndTwoContextsAtMost) {
  ModelConfig config;
  config.num_hidden_layers = 10;
  const KvLayout layout;
  const int64_t token = kv_bytes_per_token(config, layout);
  const auto tokens = [&](int64_t available) {
    return default_max_total_tokens(config, layout, 4096, available);
  };
  EXPECT_EQ(tokens(4 * 640 * token), 640);
  EXPECT_EQ(tokens(4 * 641 * token), 704) << "in whole pages";
  EXPECT_EQ(tokens(4 * 100'000 * token), 2 * 4096);
  for (const int64_t none : {int64_t{0}, -5 * token}) EXPECT_EQ(tokens(none), kPageSize) << none;
}

TEST_P(EngineTest, BadOptionsAreRefusedNamingTheField) {
  const auto message = [&](const EngineOptions& options) {
    return Engine::create(*model_, pool_, options).status().message;
  };
  EXPECT_THAT(message({.context_length = 5000}), HasSubstr("context-length is 5000"));
  EXPECT_THAT(message({.max_running_requests = -1}), HasSubstr("max-running-requests"));
  EXPECT_THAT(message({.chunked_prefill_size = 0}), HasSubstr("chunked-prefill-size"));
  EXPECT_THAT(message({.chunked_prefill_size = -2}), HasSubstr("chunked-prefill-size"));
  EXPECT_THAT(message({.max_prefill_tokens = 0}), HasSubstr("max-prefill-tokens"));
  EXPECT_THAT(message({.max_queued_requests = -2}), HasSubstr("max-queued-requests"));
  EXPECT_THAT(message({.schedule_conservativeness = 0.0}), HasSubstr("schedule-conservativeness"));
  EXPECT_THAT(message({.watchdog_timeout_s = -1.0}), HasSubstr("watchdog-timeout"));
  EXPECT_THAT(message({.record_plans = "/nowhere/plans.jsonl"}), HasSubstr("/nowhere/plans.jsonl"));
  EXPECT_THAT(message({.max_total_tokens = -4}), HasSubstr("max-total-tokens"));
  EXPECT_THAT(message({.max_total_tokens = int64_t{1} << 40}), HasSubstr("max-total-tokens"));
}

}  // namespace
}  // namespace hadal
