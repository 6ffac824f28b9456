// The small parts: background pool, chunk router, registry, prompt limits.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "server/background_pool.h"
#include "server/chunk_router.h"
#include "server/prompt_limits.h"
#include "server/request_registry.h"
#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

TEST(BackgroundPool, RunsTasksAndSurvivesOneThatThrows) {
  BackgroundPool pool(2);
  std::promise<void> done;
  EXPECT_TRUE(pool.post([] { throw std::runtime_error("no"); }));
  EXPECT_TRUE(pool.post([&] { done.set_value(); }));
  done.get_future().wait();
  pool.stop();
  EXPECT_FALSE(pool.post([] {}));
}

TEST(BackgroundPool, RefusesMoreThanItsQueueHolds) {
  BackgroundPool pool(1, 2);
  std::promise<void> gate;
  std::promise<void> started;
  pool.post([&] {
    started.set_value();
    gate.get_future().wait();
  });
  started.get_future().wait();
  EXPECT_TRUE(pool.post([] {}));
  EXPECT_TRUE(pool.post([] {}));
  EXPECT_FALSE(pool.post([] {}));
  gate.set_value();
}

class Collector final : public ChunkReceiver {
 public:
  void on_chunk(TokenChunk chunk) override { counts.push_back(chunk.completion_tokens); }
  std::vector<int64_t> counts;
};

TokenChunk chunk_of(RequestId id, int64_t count, FinishReason reason = FinishReason::kNone) {
  TokenChunk chunk;
  chunk.request_id = id;
  chunk.completion_tokens = count;
  chunk.finish_reason = reason;
  return chunk;
}

TEST(ChunkRouter, DeliversInOrderAndForgetsWhatHasEnded) {
  testing::TestIo io;
  ChunkRouter router(1);
  const auto sink = router.sink(io);
  const auto one = std::make_shared<Collector>();
  const auto two = std::make_shared<Collector>();
  router.add(io, 1, one);
  router.add(io, 2, two);
  std::thread engine([&] {
    for (int64_t i = 1; i <= 1000; ++i) {
      sink->on_chunks(
          {chunk_of(1, i), chunk_of(2, i, i == 500 ? FinishReason::kLength : FinishReason::kNone)});
    }
  });
  engine.join();
  EXPECT_TRUE(io.run_until([&] { return one->counts.size() == 1000; }));
  EXPECT_EQ(two->counts.size(), 500U);
  EXPECT_TRUE(std::is_sorted(one->counts.begin(), one->counts.end()));
  EXPECT_EQ(two.use_count(), 1);
  router.remove(io, 1);
  EXPECT_EQ(one.use_count(), 1);
  router.close();
  sink->on_chunks({chunk_of(1, 1)});  // nothing is posted any more
}

TEST(RequestRegistry, FindsByPrefix) {
  RequestRegistry registry;
  EXPECT_TRUE(registry.add("a1", 1));
  EXPECT_TRUE(registry.add("a2", 2));
  EXPECT_TRUE(registry.add("b", 3));
  EXPECT_FALSE(registry.add("b", 4));
  EXPECT_EQ(registry.find_prefix("a"), (std::vector<RequestId>{1, 2}));
  EXPECT_EQ(registry.find_prefix("").size(), 3U);
  EXPECT_TRUE(registry.find_prefix("c").empty());
  registry.remove("a1");
  EXPECT_FALSE(registry.contains("a1"));
}

TEST(FitPrompt, SaysWhatDoesNotFit) {
  const PromptLimits limits{.context_length = 100, .max_total_tokens = 1000};
  std::vector<int32_t> prompt(60, 5);
  EXPECT_EQ(fit_prompt(prompt, std::nullopt, 128, limits).value(), 40);
  EXPECT_EQ(fit_prompt(prompt, std::nullopt, 16, limits).value(), 16);
  EXPECT_EQ(fit_prompt(prompt, std::nullopt, std::nullopt, limits).value(), 40);
  EXPECT_EQ(fit_prompt(prompt, 40, 128, limits).value(), 40);
  const auto over = fit_prompt(prompt, 41, 128, limits);
  ASSERT_FALSE(over.ok());
  EXPECT_EQ(over.status().code, StatusCode::kInvalidArgument);
  EXPECT_NE(over.status().message.find("101 tokens"), std::string::npos) << over.status().message;
  // The KV cache may be the smaller one.
  const auto cache = fit_prompt(prompt, 1, 128, {.context_length = 100, .max_total_tokens = 50});
  EXPECT_NE(cache.status().message.find("KV cache"), std::string::npos);
  std::vector<int32_t> empty;
  EXPECT_FALSE(fit_prompt(empty, 1, 1, limits).ok());
}

}  // namespace
}  // namespace hadal::server
