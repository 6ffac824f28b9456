// Tests the small parts: chunk router, registry and prompt limits.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/admission/prompt_limits.h"
#include "server/generation/chunk_router.h"
#include "server/generation/request_registry.h"
#include "tests/server/test_server.h"
#include "tests/source_dir.h"

namespace hadal::server {
namespace {

TEST(PromptLimits, APromptThatLeavesNoRoomForAnAnswerIsRefused) {
  const PromptLimits limits{.context_length = 8, .max_total_tokens = 64};
  std::vector<int32_t> prompt(7, 3);
  EXPECT_EQ(fit_prompt(prompt, std::nullopt, 16, limits).value(), 1);
  EXPECT_EQ(fit_prompt(prompt, std::nullopt, std::nullopt, limits).value(), 1);
  prompt.push_back(3);
  for (const std::optional<int64_t> fallback : {std::optional<int64_t>(16), std::optional<int64_t>()}) {
    EXPECT_EQ(fit_prompt(prompt, std::nullopt, fallback, limits).status().message,
              "the prompt has 8 tokens; at most 7 are allowed: the context length of the model is 8");
  }
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

TEST(ChunkRouter, DeliversInOrderAndForgetsEndedRequests) {
  testing::TestIo io;
  ChunkRouter router(1);
  const auto sink = router.sink(io);
  const auto one = std::make_shared<Collector>();
  const auto two = std::make_shared<Collector>();
  router.add(io, 1, one);
  router.add(io, 2, two);
  std::thread engine([&] {
    for (int64_t i = 1; i <= 1000; ++i) {
      std::vector<TokenChunk> chunks = {
          chunk_of(1, i), chunk_of(2, i, i == 500 ? FinishReason::kLength : FinishReason::kNone)};
      sink->on_chunks(chunks);
    }
  });
  engine.join();
  EXPECT_TRUE(io.run_until([&] { return one->counts.size() == 1000 && two->counts.size() == 500; }));
  EXPECT_TRUE(std::is_sorted(one->counts.begin(), one->counts.end()));
  EXPECT_EQ(two.use_count(), 1);
  router.remove(io, 1);
  EXPECT_EQ(one.use_count(), 1);
  router.close();
  std::vector<TokenChunk> late = {chunk_of(1, 1)};
  sink->on_chunks(late);  // nothing is posted any more
}

class OrderReceiver final : public ChunkReceiver {
 public:
  explicit OrderReceiver(std::vector<std::pair<RequestId, int64_t>>& order) : order_(order) {}
  void on_chunk(TokenChunk chunk) override { order_.emplace_back(chunk.request_id, chunk.completion_tokens); }

 private:
  std::vector<std::pair<RequestId, int64_t>>& order_;
};

// The chunks that a stream gets in one task are one write to its socket.
TEST(ChunkRouter, ChunksOfSeveralStepsAreDeliveredRequestByRequest) {
  testing::TestIo io;
  ChunkRouter router(1);
  const auto sink = router.sink(io);
  std::vector<std::pair<RequestId, int64_t>> order;
  for (const RequestId id : {7, 3}) router.add(io, id, std::make_shared<OrderReceiver>(order));
  for (int64_t step = 1; step <= 3; ++step) {
    std::vector<TokenChunk> chunks = {
        chunk_of(7, step), chunk_of(3, step, step == 3 ? FinishReason::kLength : FinishReason::kNone)};
    sink->on_chunks(chunks);
    EXPECT_TRUE(chunks.empty());
  }
  ASSERT_TRUE(io.run_until([&] { return order.size() == 6; }));
  const std::vector<std::pair<RequestId, int64_t>> expected = {{3, 1}, {3, 2}, {3, 3},
                                                               {7, 1}, {7, 2}, {7, 3}};
  EXPECT_EQ(order, expected);
  router.remove(io, 7);
  router.close();
}

// Keeps the chunks that it gets.
class MergingReceiver final : public ChunkReceiver {
 public:
  explicit MergingReceiver(bool merges) : merges_(merges) {}
  void on_chunk(TokenChunk chunk) override { chunks.push_back(std::move(chunk)); }
  bool merges_chunks() const override { return merges_; }
  std::vector<TokenChunk> chunks;

 private:
  const bool merges_;
};

// Returns the chunk of a request's `count`-th token, which is the number `count` itself.
TokenChunk token_chunk(RequestId id, int64_t count) {
  TokenChunk chunk = chunk_of(id, count);
  chunk.token_ids = {static_cast<int32_t>(count)};
  chunk.logprobs = {{.token_id = static_cast<int32_t>(count), .logprob = -1.0F, .top = {{7, -2.0F}}}};
  return chunk;
}

TEST(ChunkRouter, AReceiverThatMergesGetsWaitingChunksAsOne) {
  testing::TestIo io;
  ChunkRouter router(1);
  const auto sink = router.sink(io);
  const auto merging = std::make_shared<MergingReceiver>(true);
  const auto plain = std::make_shared<MergingReceiver>(false);
  router.add(io, 1, merging);
  router.add(io, 2, plain);
  for (int64_t step = 1; step <= 4; ++step) {
    std::vector<TokenChunk> chunks = {token_chunk(2, step), token_chunk(1, step)};
    if (step == 1) chunks[1].prompt_logprobs = {{.token_id = 50, .logprob = -3.0F, .top = {}}};
    if (step == 4) {  // an abort brings no token
      chunks[1].token_ids.clear();
      chunks[1].logprobs.clear();
      chunks[1].completion_tokens = 3;
      chunks[1].finish_reason = FinishReason::kAbort;
      chunks[1].abort_reason = AbortReason::kMemory;
      chunks[1].abort_text = "no memory";
      chunks[1].timings.decode_s = 0.25;
    }
    sink->on_chunks(chunks);
  }
  ASSERT_TRUE(io.run_until([&] { return plain->chunks.size() == 4; }));
  ASSERT_EQ(merging->chunks.size(), 1U);
  const TokenChunk& merged = merging->chunks[0];
  EXPECT_EQ(merged.token_ids, (std::vector<int32_t>{1, 2, 3}));
  ASSERT_EQ(merged.logprobs.size(), 3U);
  EXPECT_EQ(merged.logprobs[2].token_id, 3);
  EXPECT_EQ(merged.logprobs[2].top.size(), 1U);
  ASSERT_EQ(merged.prompt_logprobs.size(), 1U);
  EXPECT_EQ(merged.prompt_logprobs[0].token_id, 50);
  EXPECT_EQ(merged.completion_tokens, 3);
  EXPECT_EQ(merged.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(merged.abort_reason, AbortReason::kMemory);
  EXPECT_EQ(merged.abort_text, "no memory");
  EXPECT_EQ(merged.timings.decode_s, 0.25);
  EXPECT_EQ(merging.use_count(), 1) << "its last chunk has been delivered";
  // A reader that is not behind gets each token by itself.
  std::vector<TokenChunk> chunks = {token_chunk(2, 5)};
  sink->on_chunks(chunks);
  ASSERT_TRUE(io.run_until([&] { return plain->chunks.size() == 5; }));
  router.remove(io, 2);
  router.close();
}

TEST(ChunkRouter, MergedChunksHaveABound) {
  testing::TestIo io;
  ChunkRouter router(1);
  const auto sink = router.sink(io);
  const auto merging = std::make_shared<MergingReceiver>(true);
  router.add(io, 1, merging);
  for (int64_t step = 1; step <= 600; ++step) {
    std::vector<TokenChunk> chunks = {token_chunk(1, step)};
    sink->on_chunks(chunks);
  }
  ASSERT_TRUE(io.run_until([&] { return merging->chunks.size() == 3; }));
  std::vector<int32_t> ids;
  for (const TokenChunk& chunk : merging->chunks) {
    EXPECT_LE(chunk.token_ids.size(), 256U);
    ids.insert(ids.end(), chunk.token_ids.begin(), chunk.token_ids.end());
    EXPECT_EQ(chunk.completion_tokens, static_cast<int64_t>(ids.size()));
  }
  EXPECT_EQ(ids.size(), 600U);
  EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
  router.remove(io, 1);
  router.close();
}

// Takes longer for each chunk than a task may take.
class SlowReceiver final : public ChunkReceiver {
 public:
  explicit SlowReceiver(std::vector<int64_t>& order) : order_(order) {}
  void on_chunk(TokenChunk chunk) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    order_.push_back(chunk.completion_tokens);
  }

 private:
  std::vector<int64_t>& order_;
};

TEST(ChunkRouter, OtherTasksOfTheThreadRunBetweenChunksThatTakeLong) {
  testing::TestIo io;
  ChunkRouter router(1);
  const auto sink = router.sink(io);
  std::vector<int64_t> order;
  for (RequestId id = 1; id <= 4; ++id) router.add(io, id, std::make_shared<SlowReceiver>(order));
  std::vector<TokenChunk> chunks = {chunk_of(1, 1), chunk_of(2, 2), chunk_of(3, 3)};
  sink->on_chunks(chunks);
  io.post([&order] { order.push_back(100); });
  // Chunks that arrive during a delivery wait for their turn, and none is left undelivered.
  io.post([&] {
    std::vector<TokenChunk> later = {chunk_of(1, 4), chunk_of(4, 5, FinishReason::kLength)};
    sink->on_chunks(later);
    io.post([&order] { order.push_back(200); });
  });
  ASSERT_TRUE(io.run_until([&] { return order.size() == 7; }));
  EXPECT_EQ(order, (std::vector<int64_t>{1, 100, 2, 200, 3, 4, 5}));
  router.remove(io, 3);
  router.close();
}

TEST(RequestRegistry, FindsByPrefix) {
  RequestRegistry registry;
  for (const auto& [rid, id] :
       std::vector<std::pair<std::string, RequestId>>{{"a1", 1}, {"a2", 2}, {"b", 3}}) {
    EXPECT_TRUE(registry.reserve({rid, ""}));
    registry.set({rid, ""}, id);
  }
  EXPECT_FALSE(registry.reserve({"b", ""}));
  EXPECT_TRUE(registry.reserve({"a3", ""}));  // there is nothing to abort yet, but the rid is in use
  EXPECT_FALSE(registry.reserve({"a3", ""}));
  EXPECT_EQ(registry.find_prefix("a"), (std::vector<RequestId>{1, 2}));
  EXPECT_EQ(registry.find_prefix("").size(), 3U);
  EXPECT_TRUE(registry.find_prefix("c").empty());
  registry.remove({"a1", ""}, 2);  // belongs to another request
  EXPECT_FALSE(registry.reserve({"a1", ""}));
  registry.remove({"a1", ""}, 1);
  EXPECT_TRUE(registry.reserve({"a1", ""}));
}

TEST(RequestRegistry, KeysNeitherOccupyNorFindEachOthersIds) {
  RequestRegistry registry;
  RequestId id = 0;
  for (const std::string& rid : {std::string("job"), std::string("job-2")}) {
    for (const std::string& key : {std::string(), std::string("alice"), std::string("bob")}) {
      EXPECT_TRUE(registry.reserve({rid, key})) << rid << ' ' << key;
      registry.set({rid, key}, ++id);
    }
  }
  EXPECT_FALSE(registry.reserve({"job", "bob"}));
  EXPECT_EQ(registry.find_prefix("job", "alice"), (std::vector<RequestId>{2, 5}));
  EXPECT_EQ(registry.find_prefix("job-", "bob"), (std::vector<RequestId>{6}));
  EXPECT_TRUE(registry.find_prefix("job", "carol").empty());
  EXPECT_EQ(registry.find_prefix("job").size(), 6U) << "without a name all are meant";
  registry.remove({"job", "alice"}, 2);
  EXPECT_TRUE(registry.reserve({"job", "alice"}));
  EXPECT_FALSE(registry.reserve({"job", "bob"})) << "one key's id ends without another's";
}

TEST(PromptLimits, ATextThatIsTooLongIsRefusedBeforeItIsTokenised) {
  const auto tokenizer = Tokenizer::load(source_dir() + "/models/hadal-tiny").value();
  PromptLimits limits{.context_length = 100, .max_total_tokens = 1000};
  const size_t most = max_prompt_bytes(*tokenizer, limits);
  EXPECT_EQ(most, 100 * tokenizer->longest_token_bytes());
  const auto by_bytes = encode_prompt(*tokenizer, std::string(most + 1, 'a'), true, limits);
  ASSERT_FALSE(by_bytes.ok());
  EXPECT_EQ(
      by_bytes.status().message,
      "the prompt has at least 101 tokens; at most 99 are allowed: the context length of the model is 100");
  std::string digits;
  for (int i = 0; i < 300; ++i) digits += "1 ";
  const auto counted = encode_prompt(*tokenizer, digits, true, limits);
  ASSERT_FALSE(counted.ok());
  EXPECT_NE(counted.status().message.find("has at least 201 tokens; at most 99"), std::string::npos)
      << counted.status().message;
  limits.allow_auto_truncate = true;
  auto cut = encode_prompt(*tokenizer, std::string(1 << 20, 'a'), true, limits);
  ASSERT_TRUE(cut.ok());
  EXPECT_GT(cut->size(), 100U);
  EXPECT_EQ(fit_prompt(*cut, std::nullopt, 16, limits).value(), 16);
  EXPECT_EQ(cut->size(), 84U);
}

TEST(FitPrompt, ErrorsNameThePromptAndTheLimit) {
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
  // The KV cache may be the smaller limit.
  const auto cache = fit_prompt(prompt, 1, 128, {.context_length = 100, .max_total_tokens = 50});
  EXPECT_NE(cache.status().message.find("KV cache"), std::string::npos);
  std::vector<int32_t> empty;
  EXPECT_FALSE(fit_prompt(empty, 1, 1, limits).ok());
}

TEST(FitPrompt, TruncatesThePromptsEndAndLeavesRoomForTheAnswer) {
  const PromptLimits limits{.context_length = 100, .max_total_tokens = 1000, .allow_auto_truncate = true};
  const auto cut = [&](std::optional<int64_t> wanted, std::optional<int64_t> fallback) {
    std::vector<int32_t> prompt(300, 5);
    prompt[0] = 1;
    const int64_t length = fit_prompt(prompt, wanted, fallback, limits).value();
    EXPECT_EQ(prompt[0], 1);
    return std::pair<size_t, int64_t>(prompt.size(), length);
  };
  EXPECT_EQ(cut(10, 16), std::pair(size_t{90}, int64_t{10}));
  EXPECT_EQ(cut(80, 16), std::pair(size_t{50}, int64_t{50}));
  EXPECT_EQ(cut(std::nullopt, 16), std::pair(size_t{84}, int64_t{16}));
  EXPECT_EQ(cut(std::nullopt, std::nullopt), std::pair(size_t{50}, int64_t{50}));
  EXPECT_EQ(cut(0, 16), std::pair(size_t{99}, int64_t{0}));
  // A prompt that fits is not truncated: the answer is shorter.
  std::vector<int32_t> prompt(95, 5);
  EXPECT_EQ(fit_prompt(prompt, 50, 16, limits).value(), 5);
  EXPECT_EQ(prompt.size(), 95U);
}

}  // namespace
}  // namespace hadal::server
