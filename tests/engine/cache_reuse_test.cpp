// Tests what the prefix cache saves, and that it never changes an answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/model_runner.h"
#include "tests/engine/small_model.h"
#include "tests/engine/test_requests.h"

namespace hadal {
namespace {

using testing::CheckedEngine;
using testing::drain;
using testing::Finished;
using testing::greedy_request;
using testing::random_prompt;
using testing::run;
using ::testing::SizeIs;

class CacheReuseTest : public ::testing::TestWithParam<bool> {
 protected:
  CheckedEngine make_engine(EngineOptions options = {}) {
    options.max_total_tokens = 4096;
    options.overlap_schedule = GetParam();
    options.decode_log_interval = 0;
    return CheckedEngine(Engine::create(*model_, pool_, options).value());
  }
  // Returns the answer without a cache, from a model and pool of its own, because an engine uses these
  // exclusively.
  Finished fresh_run(GenerateRequest request) {
    EngineOptions options{.max_total_tokens = 4096, .enable_radix_cache = false};
    options.overlap_schedule = GetParam();
    options.decode_log_interval = 0;
    return run(*CheckedEngine(Engine::create(*fresh_model_, fresh_pool_, options).value()),
               std::move(request));
  }
  GenerateRequest scored_request(std::vector<int32_t> ids, int64_t start = -1) {
    GenerateRequest request = greedy_request(std::move(ids), 8);
    request.logprobs = {.enabled = true, .start = start, .top_num = 2};
    return request;
  }

  ThreadPool pool_{2};
  std::unique_ptr<Model> model_ = testing::make_small_model("v3", pool_);
  ThreadPool fresh_pool_{1};
  std::unique_ptr<Model> fresh_model_ = testing::make_small_model("v3", fresh_pool_);
};

INSTANTIATE_TEST_SUITE_P(Loop, CacheReuseTest, ::testing::Bool(),
                         [](const auto& loop) { return loop.param ? "Overlapped" : "Plain"; });

TEST_P(CacheReuseTest, AHitGivesTheSameBitsAsNoCache) {
  const auto engine = make_engine();
  // Each prompt begins like the base: two leave it inside a page and two at a page's border, and the last
  // prompt is the whole base again.
  const std::vector<int32_t> base = random_prompt(200, 1);
  for (const int64_t shared : {200, 130, 128, 70, 64, 200}) {
    std::vector<int32_t> ids(base.begin(), base.begin() + shared);
    const std::vector<int32_t> own = random_prompt(40, shared);
    if (shared < 200) ids.insert(ids.end(), own.begin(), own.end());
    const Finished fresh = fresh_run(scored_request(ids));
    const Finished reused = run(*engine, scored_request(ids));
    testing::expect_same(fresh, reused);
    EXPECT_EQ(fresh.last.cached_tokens, 0);
  }
  EXPECT_EQ(run(*engine, scored_request(base)).last.cached_tokens, 199);
  EXPECT_GT(engine->stats().scheduler.total_cached_tokens, 199 + 130 + 128 + 70 + 64 - 1);
}

TEST_P(CacheReuseTest, RequestsThatArriveTogetherComputeTheirPrefixOnce) {
  const auto engine = make_engine();
  const std::vector<int32_t> shared = random_prompt(256, 2);
  constexpr int kNum = 8;
  const auto request = [&](int i) {
    std::vector<int32_t> ids = shared;
    ids.push_back(i);
    return scored_request(std::move(ids));
  };
  engine->pause();
  std::vector<RequestId> ids;
  for (int i = 0; i < kNum; ++i) ids.push_back(engine->submit(request(i)).value());
  engine->resume();
  for (int i = 0; i < kNum; ++i) {
    testing::expect_same(drain(*engine, ids[i]), fresh_run(request(i)));
  }
  const SchedulerStats stats = engine->stats().scheduler;
  EXPECT_EQ(stats.total_prompt_tokens, kNum * 257);
  EXPECT_EQ(stats.total_prompt_tokens - stats.total_cached_tokens, 256 + kNum);
}

TEST_P(CacheReuseTest, PromptLogprobsAreCompleteWhateverIsCached) {
  const auto engine = make_engine();
  const std::vector<int32_t> ids = random_prompt(150, 3);
  const Finished fresh = fresh_run(scored_request(ids, 0));
  EXPECT_THAT(fresh.prompt_logprobs, SizeIs(149));
  run(*engine, scored_request(ids));
  const Finished reused = run(*engine, scored_request(ids, 0));
  testing::expect_same(fresh, reused);
  EXPECT_EQ(reused.last.cached_tokens, 0);

  const Finished tail = run(*engine, scored_request(ids, 100));
  EXPECT_EQ(tail.last.cached_tokens, 100);
  testing::expect_same_logprobs(tail.prompt_logprobs,
                                {fresh.prompt_logprobs.begin() + 100, fresh.prompt_logprobs.end()});
  EXPECT_THAT(run(*engine, scored_request(ids, 149)).prompt_logprobs, SizeIs(0));
}

TEST_P(CacheReuseTest, TheNextTurnOfAConversationFindsItsHistory) {
  std::vector<int32_t> ids = random_prompt(100, 4);
  {
    const auto engine = make_engine();
    const Finished first = run(*engine, greedy_request(ids, 60));
    ids.insert(ids.end(), first.ids.begin(), first.ids.end());
    ids.push_back(3);
    // The last token was never computed, because nothing followed it.
    EXPECT_EQ(run(*engine, greedy_request(ids, 4)).last.cached_tokens, 159);
  }
  const auto prompts_only = make_engine({.cache_generated_tokens = false});
  run(*prompts_only, greedy_request(random_prompt(100, 4), 60));
  const Finished second = run(*prompts_only, scored_request(ids));
  EXPECT_EQ(second.last.cached_tokens, 100);
  testing::expect_same(second, fresh_run(scored_request(ids)));
}

TEST_P(CacheReuseTest, FlushingEmptiesTheCacheAndIsRefusedWhileRequestsRun) {
  const auto engine = make_engine();
  const std::vector<int32_t> ids = random_prompt(100, 5);
  run(*engine, greedy_request(ids, 2));
  engine->pause();
  const RequestId waiting = engine->submit(greedy_request(ids, 2)).value();
  EXPECT_EQ(engine->flush_cache().status().code, StatusCode::kResourceExhausted);
  engine->resume();
  EXPECT_EQ(drain(*engine, waiting).last.cached_tokens, 99);
  ASSERT_TRUE(engine->flush_cache().ok());
  EXPECT_EQ(engine->stats().scheduler.num_cached_pages, 0);
  EXPECT_EQ(run(*engine, greedy_request(ids, 2)).last.cached_tokens, 0);
}

// A retracted request's generated tokens are computed again as several decode rows of one sequence in one
// step. All of a layer's records are written before any row attends, so the bits equal those of one row at a
// time.
TEST(DecodeRows, SeveralOfOneSequenceGiveTheBitsOfOneAtATime) {
  ThreadPool pool(2);
  const std::unique_ptr<Model> model = testing::make_small_model("v3", pool);
  for (const KernelSet kernels : {KernelSet::kOptimised, KernelSet::kReference}) {
    const std::vector<int32_t> prompt = random_prompt(60, 6);
    // These are enough tokens to cross a page border, and fewer for the naive kernels, which are slow.
    const std::vector<int32_t> generated = random_prompt(kernels == KernelSet::kOptimised ? 75 : 8, 7);
    const auto place = [](ForwardBatch& batch, int32_t token, int64_t position) {
      batch.token_ids.push_back(token);
      batch.positions.push_back(static_cast<int32_t>(position));
      batch.slots.push_back(position);
    };
    const auto prefill = [&] {
      ForwardBatch batch;
      for (size_t i = 0; i < prompt.size(); ++i) place(batch, prompt[i], static_cast<int64_t>(i));
      batch.num_prefill_tokens = 60;
      batch.segments = {{.seq_idx = 0, .q_begin = 0, .q_len = 60, .kv_len = 60}};
      batch.page_table = {0, 1, 2};
      batch.page_table_stride = 3;
      return batch;
    };
    const auto add_decode = [&](ForwardBatch& batch, size_t i) {
      const auto position = static_cast<int64_t>(prompt.size() + i);
      batch.logit_rows.push_back(static_cast<int32_t>(batch.token_ids.size()));
      place(batch, generated[i], position);
      batch.decode_seq_idx.push_back(0);
      batch.decode_kv_len.push_back(static_cast<int32_t>(position + 1));
    };

    CpuRunner one_at_a_time(*model, pool, 3, {}, kernels);
    one_at_a_time.forward(prefill());
    std::vector<float> expected;
    for (size_t i = 0; i < generated.size(); ++i) {
      ForwardBatch batch;
      batch.page_table = {0, 1, 2};
      batch.page_table_stride = 3;
      add_decode(batch, i);
      const std::span<const float> logits = one_at_a_time.forward(batch);
      expected.insert(expected.end(), logits.begin(), logits.end());
    }

    CpuRunner together(*model, pool, 3, {}, kernels);
    ForwardBatch batch = prefill();  // includes the prompt's rows, as after a retraction
    for (size_t i = 0; i < generated.size(); ++i) add_decode(batch, i);
    const std::span<const float> logits = together.forward(batch);
    ASSERT_EQ(logits.size(), expected.size());
    EXPECT_TRUE(std::equal(logits.begin(), logits.end(), expected.begin()));
  }
}

}  // namespace
}  // namespace hadal
