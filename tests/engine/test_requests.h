// Holds what the engine's tests share: requests, outcomes, conditions and constraints with known behaviour.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace hadal::testing {

inline constexpr int64_t kVocab = 320;

inline std::vector<int32_t> random_prompt(int64_t length, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids(length);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % kVocab);
  return ids;
}

inline GenerateRequest greedy_request(std::vector<int32_t> ids, int64_t max_new_tokens) {
  GenerateRequest request;
  request.input_ids = std::move(ids);
  request.sampling.temperature = 0.0F;
  request.sampling.max_new_tokens = max_new_tokens;
  request.sampling.ignore_eos = true;
  return request;
}

// Holds the joined chunks of one request.
struct Finished {
  std::vector<int32_t> ids;
  std::vector<TokenLogprob> logprobs, prompt_logprobs;
  TokenChunk last;
  int num_chunks = 0;

  void add(TokenChunk chunk) {
    EXPECT_EQ(last.finish_reason, FinishReason::kNone) << "a chunk after the final one";
    ids.insert(ids.end(), chunk.token_ids.begin(), chunk.token_ids.end());
    logprobs.insert(logprobs.end(), chunk.logprobs.begin(), chunk.logprobs.end());
    prompt_logprobs.insert(prompt_logprobs.end(), chunk.prompt_logprobs.begin(), chunk.prompt_logprobs.end());
    last = std::move(chunk);
    ++num_chunks;
  }
};

inline Finished drain(Engine& engine, RequestId id) {
  Finished result;
  while (std::optional<TokenChunk> chunk = engine.stream(id)) result.add(std::move(*chunk));
  return result;
}

inline Finished run(Engine& engine, GenerateRequest request) {
  return drain(engine, engine.submit(std::move(request)).value());
}

inline void expect_same_logprobs(const std::vector<TokenLogprob>& a, const std::vector<TokenLogprob>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].token_id, b[i].token_id) << i;
    EXPECT_EQ(a[i].logprob, b[i].logprob) << i;
    EXPECT_EQ(a[i].top, b[i].top) << i;
  }
}

// Compares token ids and the bits of every logprob.
inline void expect_same(const Finished& a, const Finished& b) {
  EXPECT_EQ(a.ids, b.ids);
  expect_same_logprobs(a.logprobs, b.logprobs);
  expect_same_logprobs(a.prompt_logprobs, b.prompt_logprobs);
}

// Wraps an engine and checks its integrity before it is destroyed.
class CheckedEngine {
 public:
  explicit CheckedEngine(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
  CheckedEngine(CheckedEngine&&) = default;
  ~CheckedEngine() {
    if (engine_ == nullptr) return;
    EXPECT_NO_THROW(engine_->check_integrity());
    engine_->abort_all();
    EXPECT_NO_THROW(engine_->check_integrity());  // after the abort, because calls are executed in order
    const EngineStats stats = engine_->stats();
    EXPECT_EQ(stats.scheduler.num_running, 0);
    EXPECT_EQ(stats.scheduler.num_queued, 0);
  }
  Engine* operator->() const { return engine_.get(); }
  Engine& operator*() const { return *engine_; }

 private:
  std::unique_ptr<Engine> engine_;
};

class StopAfter final : public StopCondition {
 public:
  explicit StopAfter(int count) : left_(count) {}
  bool on_token(int32_t) override { return --left_ == 0; }

 private:
  int left_;
};

// The allowed tokens depend on all earlier ones, so a mask made too early or for another row is wrong.
class ChainConstraint final : public TokenConstraint {
 public:
  // One in `modulus` tokens is allowed. Making a mask takes `delay`, but no processor time.
  explicit ChainConstraint(uint32_t modulus = 5, std::chrono::milliseconds delay = {})
      : modulus_(modulus), delay_(delay) {}
  void fill_mask(std::span<uint32_t> allowed) override {
    if (delay_.count() > 0) std::this_thread::sleep_for(delay_);
    for (uint32_t token = 0; token < kVocab; ++token) {
      if (allows(token)) allowed[token / 32] |= 1U << (token % 32);
    }
  }
  bool accept_token(int32_t token_id) override {
    const bool allowed = allows(token_id);
    states_.push_back(states_.back() * 31 + token_id + 1);
    return allowed;
  }
  void rollback(int64_t num_tokens) override {
    EXPECT_LT(num_tokens, std::ssize(states_));
    states_.resize(states_.size() - static_cast<size_t>(num_tokens));
  }

 private:
  bool allows(uint32_t token) const { return token % modulus_ == states_.back() % modulus_; }
  const uint32_t modulus_;
  const std::chrono::milliseconds delay_;
  std::vector<uint32_t> states_ = {0};
};

// Collects the chunks of any number of requests.
class Collector final : public ChunkSink {
 public:
  void on_chunks(std::vector<TokenChunk>& chunks) override {
    const std::lock_guard lock(mutex_);
    ++num_calls_;
    for (TokenChunk& chunk : chunks) {
      if (chunk.finish_reason != FinishReason::kNone) ++num_finished_;
      results_[chunk.request_id].add(std::move(chunk));
    }
    changed_.notify_all();
  }
  void wait_finished(int64_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_finished_ >= count; });
  }
  // Waits until request `id` has that many tokens or has ended.
  void wait_tokens(RequestId id, size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return results_[id].ids.size() >= count || results_[id].last.finish_reason != FinishReason::kNone;
    });
  }
  Finished result(RequestId id) {
    const std::lock_guard lock(mutex_);
    return results_[id];
  }
  int64_t num_calls() {
    const std::lock_guard lock(mutex_);
    return num_calls_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<RequestId, Finished> results_;
  int64_t num_finished_ = 0;
  int64_t num_calls_ = 0;
};

}  // namespace hadal::testing
