// Tests that an engine whose model is shared by several ranks answers like one with a single rank, and that a
// rank's failure reaches every request exactly once.
#include "engine/cpu/rank_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <latch>
#include <new>
#include <thread>

#include "engine/cpu/cpu_executor.h"
#include "engine/engine.h"
#include "tests/comm/ranks.h"
#include "tests/engine/small_model.h"
#include "tests/engine/test_requests.h"

namespace hadal {
namespace {

using testing::CheckedEngine;
using testing::Finished;
using testing::greedy_request;
using ::testing::HasSubstr;
using testing::kPatient;
using testing::random_prompt;

// Calls one function before each forward pass of a rank's model, and another after it, however the pass ends.
class WatchedModel final : public Model {
 public:
  WatchedModel(
      std::shared_ptr<Model> model, std::function<void()> before, std::function<void()> after = [] {})
      : model_(std::move(model)), before_(std::move(before)), after_(std::move(after)) {}
  const ModelConfig& config() const override { return model_->config(); }
  const ModelWeights& weights() const override { return model_->weights(); }
  const ExpertStats& expert_stats() const override { return model_->expert_stats(); }
  void forward(const ForwardBatch& batch, KvCache& cache, const ForwardOutputs& outputs,
               ExecContext& exec) override {
    const std::shared_ptr<void> at_end(nullptr, [this](void*) { after_(); });
    before_();
    model_->forward(batch, cache, outputs, exec);
  }
  void forward_nextn(const ForwardBatch& batch, const float* hidden, KvCache& cache,
                     const ForwardOutputs& outputs, ExecContext& exec) override {
    model_->forward_nextn(batch, hidden, cache, outputs, exec);
  }

 private:
  std::shared_ptr<Model> model_;
  std::function<void()> before_;
  std::function<void()> after_;
};

struct Kind {
  const char* model;
  ModelSplit split;
};
std::ostream& operator<<(std::ostream& out, const Kind& kind) {
  return out << kind.model << " tp " << kind.split.tp << " ep " << kind.split.ep;
}

class RankTest : public ::testing::Test {
 protected:
  std::unique_ptr<Engine> make_engine(std::vector<std::shared_ptr<Model>> ranks, EngineOptions options,
                                      std::chrono::milliseconds deadline = kPatient) {
    options.max_total_tokens = 4096;
    options.max_running_requests = 16;
    options.context_length = 1024;
    options.decode_log_interval = 0;
    const ModelConfig config = ranks[0]->config();
    options.kv_layout = cache_layout(config, options.kv_layout.format).value();
    auto runner = std::make_unique<RankRunner>(
        std::move(ranks), RankRunnerOptions{.num_pages = options.max_total_tokens / kPageSize,
                                            .layout = options.kv_layout,
                                            .num_threads = 2,
                                            .deadline = deadline});
    return Engine::create(std::make_unique<CpuExecutor>(std::move(runner), pool_), config, options).value();
  }

  ThreadPool pool_{2};
};

using LostRank = RankTest;

class RankEngine : public RankTest, public ::testing::WithParamInterface<Kind> {
 protected:
  std::vector<std::shared_ptr<Model>> ranks() {
    return testing::make_small_ranks(GetParam().model, GetParam().split, pool_);
  }

  static std::vector<int32_t> prompt_of(int i) { return random_prompt(3 + 19 * i, 40 + i); }

  // Runs prompts of many lengths at once.
  static std::vector<Finished> answers(Engine& engine) {
    std::vector<RequestId> ids;
    for (int i = 0; i < 12; ++i) {
      GenerateRequest request = greedy_request(prompt_of(i), 12);
      request.logprobs = {.enabled = true, .start = -1, .top_num = 2};
      if (i % 3 == 0) {
        request.sampling.temperature = 0.8F;
        request.sampling.seed = 7 + i;
      }
      ids.push_back(engine.submit(std::move(request)).value());
    }
    std::vector<Finished> out;
    for (const RequestId id : ids) out.push_back(testing::drain(engine, id));
    return out;
  }
};

TEST_P(RankEngine, RanksGiveTheTokensOfOneRank) {
  const std::unique_ptr<Model> whole = testing::make_small_model(GetParam().model, pool_);
  EngineOptions options{.max_total_tokens = 4096, .max_running_requests = 16, .decode_log_interval = 0};
  options.kv_layout = cache_layout(whole->config(), options.kv_layout.format).value();
  const CheckedEngine one(Engine::create(*whole, pool_, options).value());
  const std::vector<Finished> expected = answers(*one);
  const CheckedEngine engine(make_engine(ranks(), {}));
  const std::vector<Finished> got = answers(*engine);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].ids, expected[i].ids) << i;
    ASSERT_EQ(got[i].logprobs.size(), expected[i].logprobs.size()) << i;
    for (size_t j = 0; j < got[i].logprobs.size(); ++j)
      EXPECT_NEAR(got[i].logprobs[j].logprob, expected[i].logprobs[j].logprob, 1e-4) << i << ' ' << j;
  }
}

// Every rank has a cache of its own, and all of them must hold the same records.
TEST_P(RankEngine, RanksFillTheirCachesAsOneRankDoes) {
  const std::unique_ptr<Model> whole = testing::make_small_model(GetParam().model, pool_);
  const KvLayout layout = cache_layout(whole->config(), KvFormat::kBF16).value();
  CpuRunner one(*whole, pool_, 4, layout);
  RankRunner split(ranks(), {.num_pages = 4, .layout = layout, .num_threads = 2});
  ForwardBatch batch;
  batch.token_ids = {5};
  batch.positions = {200};
  batch.slots = {200};
  batch.decode_seq_idx = {0};
  batch.decode_kv_len = {201};
  batch.page_table = {0, 1, 2, 3};
  batch.page_table_stride = 4;
  batch.logit_rows = {0};
  const auto logits_behind = [&](HostRunner& runner, uint64_t seed) {
    runner.fill_cache(seed);
    const std::span<const float> logits = runner.forward(batch);
    return std::vector<float>(logits.begin(), logits.end());
  };
  const std::vector<float> expected = logits_behind(one, 1);
  EXPECT_EQ(logits_behind(one, 1), expected);
  EXPECT_THAT(logits_behind(split, 1), ::testing::Pointwise(::testing::FloatNear(1e-3F), expected));
  EXPECT_NE(logits_behind(one, 2), expected);
}

TEST_P(RankEngine, BitsDependOnNeitherLoopNorNeighbours) {
  const CheckedEngine overlapped(make_engine(ranks(), {}));
  const std::vector<Finished> together = answers(*overlapped);
  const CheckedEngine plain(make_engine(ranks(), {.chunked_prefill_size = 64, .overlap_schedule = false}));
  const std::vector<Finished> other = answers(*plain);
  for (size_t i = 0; i < together.size(); ++i) testing::expect_same(together[i], other[i]);
  GenerateRequest request = greedy_request(prompt_of(4), 12);
  request.logprobs = {.enabled = true, .start = -1, .top_num = 2};
  testing::expect_same(testing::run(*overlapped, std::move(request)), together[4]);
}

TEST_P(RankEngine, ASlowRankChangesNoBit) {
  const CheckedEngine even(make_engine(ranks(), {}));
  const std::vector<Finished> expected = answers(*even);
  std::vector<std::shared_ptr<Model>> parts = ranks();
  parts.back() = std::make_shared<WatchedModel>(
      parts.back(), [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
  const CheckedEngine uneven(make_engine(std::move(parts), {}));
  const std::vector<Finished> got = answers(*uneven);
  for (size_t i = 0; i < got.size(); ++i) testing::expect_same(got[i], expected[i]);
}

TEST_P(RankEngine, ARankThatThrowsEndsTheRequestsOfItsStepAlone) {
  for (const bool out_of_memory : {false, true}) {
    std::atomic<bool> throws{false};
    std::vector<std::shared_ptr<Model>> parts = ranks();
    parts.back() = std::make_shared<WatchedModel>(parts.back(), [&] {
      if (!throws.exchange(false)) return;
      if (out_of_memory) throw std::bad_alloc();
      throw Error("a fault of the test");
    });
    const CheckedEngine engine(make_engine(std::move(parts), {}));
    const Finished before = testing::run(*engine, greedy_request(random_prompt(20, 3), 6));
    throws = true;
    const Finished hit = testing::run(*engine, greedy_request(random_prompt(33, 4), 6));
    EXPECT_EQ(hit.last.finish_reason, FinishReason::kAbort);
    EXPECT_THAT(hit.last.abort_text, out_of_memory ? HasSubstr("alloc") : HasSubstr("a fault of the test"));
    EXPECT_EQ(testing::run(*engine, greedy_request(random_prompt(20, 3), 6)).ids, before.ids);
  }
}

// The lost rank goes on with its step once the engine has ended, and everything that it uses still exists.
TEST_F(LostRank, EndsTheEngineWithOneErrorForEachRequest) {
  const auto hangs = std::make_shared<std::atomic<bool>>(false);
  const auto released = std::make_shared<std::latch>(1);
  const auto left = std::make_shared<std::latch>(1);
  std::vector<std::shared_ptr<Model>> parts = testing::make_small_ranks("v3", {.tp = 2}, pool_);
  parts.back() = std::make_shared<WatchedModel>(
      parts.back(),
      [hangs, released] {
        if (hangs->load()) released->wait();
      },
      [hangs, left] {
        if (hangs->load()) left->count_down();
      });
  {
    const std::unique_ptr<Engine> engine = make_engine(std::move(parts), {}, std::chrono::seconds(3));
    EXPECT_EQ(testing::run(*engine, greedy_request(random_prompt(20, 3), 3)).ids.size(), 3U);
    hangs->store(true);
    std::vector<RequestId> ids;
    for (int i = 0; i < 4; ++i)
      ids.push_back(engine->submit(greedy_request(random_prompt(20 + 60 * i, i), 6)).value());
    for (const RequestId id : ids) {
      const Finished ended = testing::drain(*engine, id);
      EXPECT_EQ(ended.last.finish_reason, FinishReason::kAbort);
      EXPECT_THAT(ended.last.abort_text, HasSubstr("rank 1 is lost"));
    }
    EXPECT_FALSE(engine->submit(greedy_request(random_prompt(20, 9), 6)).ok());
  }
  released->count_down();
  left->wait();
}

// In the overlapped loop another step is in flight when a rank is lost.
TEST_F(LostRank, KeepsWhatItUsesWhateverIsAskedAfterwards) {
  const auto released = std::make_shared<std::latch>(1);
  const auto left = std::make_shared<std::latch>(1);
  std::vector<std::shared_ptr<Model>> parts = testing::make_small_ranks("v3", {.tp = 2}, pool_);
  parts.back() = std::make_shared<WatchedModel>(
      parts.back(), [released] { released->wait(); }, [left] { left->count_down(); });
  {
    RankRunner runner(std::move(parts), {.num_pages = 4, .deadline = std::chrono::seconds(1)});
    const auto batch_of = [](int count) {
      ForwardBatch batch;
      for (int i = 0; i < count; ++i) {
        batch.token_ids.push_back(i + 2);
        batch.positions.push_back(i);
        batch.slots.push_back(i);
        batch.logit_rows.push_back(i);
      }
      batch.num_prefill_tokens = count;
      batch.segments = {{.seq_idx = 0, .q_begin = 0, .q_len = count, .kv_len = count}};
      batch.page_table = {0};
      batch.page_table_stride = 1;
      return batch;
    };
    EXPECT_THROW(runner.forward(batch_of(2)), RankLost);
    EXPECT_THROW(runner.forward(batch_of(60)), RankLost);
    const std::vector<PageCopy> copies{{.source = 0, .target = 1, .num_rows = 2}};
    EXPECT_THROW(runner.copy_pages(copies), RankLost);
  }
  released->count_down();
  left->wait();
}

class RefusingModel final : public Model {
 public:
  const ModelConfig& config() const override { throw Error("no memory for the cache"); }
  const ModelWeights& weights() const override { throw Error("unused"); }
  const ExpertStats& expert_stats() const override { throw Error("unused"); }
  void forward(const ForwardBatch&, KvCache&, const ForwardOutputs&, ExecContext&) override {
    throw Error("unused");
  }
  void forward_nextn(const ForwardBatch&, const float*, KvCache&, const ForwardOutputs&,
                     ExecContext&) override {
    throw Error("unused");
  }
};

TEST_P(RankEngine, AnErrorInStartUpNamesTheRank) {
  std::vector<std::shared_ptr<Model>> parts = ranks();
  parts[1] = std::make_shared<RefusingModel>();
  try {
    RankRunner runner(std::move(parts), {.num_pages = 4});
    FAIL() << "a rank without a cache was made";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 1: no memory for the cache");
  }
}

INSTANTIATE_TEST_SUITE_P(Splits, RankEngine,
                         ::testing::Values(Kind{"v3", {.tp = 2, .ep = 1}}, Kind{"v3", {.tp = 2, .ep = 2}},
                                           Kind{"v2-lite", {.tp = 3, .ep = 1}},
                                           Kind{"v3.2", {.tp = 2, .ep = 1}}));

}  // namespace
}  // namespace hadal
