// Makes mixes of requests of every kind, runs them, and compares two runs.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "tests/engine/test_requests.h"

namespace hadal::testing {

inline constexpr int kNumRequests = 24;

// This pool, in tokens, holds far fewer than half the requests of a mix.
inline constexpr int64_t kTinyPool = 64 * 7;

// Where a mix runs in many variants, it has half the requests.
inline constexpr int kFewRequests = kNumRequests / 2;

// Returns request i of a mix, always the same one.
inline GenerateRequest mixed_request(uint64_t seed, int i) {
  std::mt19937_64 random(seed * 1000 + i);
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  std::vector<int32_t> ids = random_prompt(1 + below(100), seed * 1000 + i);
  if (below(3) == 0) {  // one of two shared beginnings
    const std::vector<int32_t> shared = random_prompt(100, seed * 7 + below(2));
    ids.insert(ids.begin(), shared.begin(), shared.end());
  }
  const auto prompt_len = static_cast<int64_t>(ids.size());
  GenerateRequest request = greedy_request(std::move(ids), below(12) == 0 ? 0 : 1 + below(70));
  SamplingParams& sampling = request.sampling;
  if (below(2) == 0) {
    sampling.temperature = 0.5F + 0.1F * static_cast<float>(below(10));
    sampling.seed = below(1 << 20);
    if (below(2) == 0) sampling.top_p = 0.9F;
    if (below(2) == 0) sampling.top_k = 20;
  }
  if (below(4) == 0) sampling.frequency_penalty = 0.7F;
  if (below(4) == 0) sampling.repetition_penalty = 1.3F;
  if (below(3) == 0) sampling.ignore_eos = false;
  if (below(3) == 0) sampling.stop_token_ids = {static_cast<int32_t>(below(kVocab))};
  if (below(4) == 0) sampling.min_new_tokens = sampling.max_new_tokens / 2;
  if (below(2) == 0) {
    request.logprobs = {.enabled = true,
                        .start = below(2) == 0 ? below(static_cast<uint64_t>(prompt_len)) : -1,
                        .top_num = below(3)};
  }
  if (below(5) == 0) request.stop = std::make_unique<StopAfter>(static_cast<int>(1 + below(20)));
  if (below(3) == 0) request.constraint = std::make_unique<ChainConstraint>();
  request.stream_interval = 1 + below(4);
  return request;
}

// Four requests of a mix are aborted.
inline bool is_aborted(uint64_t seed, int i, int num_requests = kNumRequests) {
  return (seed + i) % (num_requests / 4) == 0;
}

struct MixResult {
  std::vector<Finished> finished;
  EngineStats stats;
  int64_t num_late_masks = 0;  // only where a test has counted them
};

// Runs the first requests of a mix. If with_aborts, some are aborted, each after its own number of tokens.
// Making a mask takes mask_delay.
inline MixResult run_mix(CheckedEngine engine, uint64_t seed, bool with_aborts = false,
                         int num_requests = kNumRequests, std::chrono::milliseconds mask_delay = {}) {
  const auto sink = std::make_shared<Collector>();
  std::vector<RequestId> ids;
  for (int i = 0; i < num_requests; ++i) {
    GenerateRequest request = mixed_request(seed, i);
    if (request.constraint != nullptr)
      request.constraint = std::make_unique<ChainConstraint>(/*modulus=*/5, mask_delay);
    request.sink = sink;
    ids.push_back(engine->submit(std::move(request)).value());
    if (i == num_requests / 2) sink->wait_tokens(ids[0], 1);  // the second half arrives at a busy engine
  }
  if (with_aborts) {
    for (int i = 0; i < num_requests; ++i) {
      if (!is_aborted(seed, i, num_requests)) continue;
      sink->wait_tokens(ids[i], i % 5);
      engine->abort(ids[i]);
      engine->check_integrity();
    }
  }
  sink->wait_finished(num_requests);
  MixResult result;
  for (const RequestId id : ids) result.finished.push_back(sink->result(id));
  result.stats = engine->stats();
  return result;
}

inline void expect_same_mix(const MixResult& a, const MixResult& b) {
  ASSERT_EQ(a.finished.size(), b.finished.size());
  for (size_t i = 0; i < a.finished.size(); ++i) {
    SCOPED_TRACE(i);
    expect_same(a.finished[i], b.finished[i]);
    EXPECT_EQ(a.finished[i].last.finish_reason, b.finished[i].last.finish_reason);
    EXPECT_EQ(a.finished[i].last.abort_text, b.finished[i].last.abort_text);
    EXPECT_EQ(a.finished[i].last.completion_tokens, b.finished[i].last.completion_tokens);
  }
}

// Expects that each request of `failed` either ended with `reason`, or has the answer of `whole`, and that
// there are both.
inline void expect_failed_alone(const MixResult& whole, const MixResult& failed, std::string_view reason) {
  ASSERT_EQ(whole.finished.size(), failed.finished.size());
  size_t num_failed = 0;
  for (size_t i = 0; i < failed.finished.size(); ++i) {
    SCOPED_TRACE(i);
    if (failed.finished[i].last.finish_reason == FinishReason::kAbort) {
      EXPECT_EQ(failed.finished[i].last.abort_text, reason);
      ++num_failed;
    } else {
      expect_same(whole.finished[i], failed.finished[i]);
    }
  }
  EXPECT_GT(num_failed, 0U);
  EXPECT_LT(num_failed, failed.finished.size());
}

// Expects that the answers of aborted requests in `cut` begin those of `whole`, and that the others are
// equal. Adds to num_cut the number of requests that an abort has really ended.
inline void expect_beginnings(uint64_t seed, const MixResult& whole, const MixResult& cut, int& num_cut) {
  ASSERT_EQ(whole.finished.size(), cut.finished.size());
  const auto num_requests = static_cast<int>(whole.finished.size());
  for (int i = 0; i < num_requests; ++i) {
    SCOPED_TRACE(i);
    const Finished& all = whole.finished[i];
    const Finished& part = cut.finished[i];
    if (part.last.finish_reason != FinishReason::kAbort) {
      expect_same(all, part);
      continue;
    }
    ++num_cut;
    EXPECT_TRUE(is_aborted(seed, i, num_requests));
    ASSERT_LE(part.ids.size(), all.ids.size());
    for (size_t k = 0; k < part.ids.size(); ++k) EXPECT_EQ(part.ids[k], all.ids[k]);
    for (size_t k = 0; k < part.logprobs.size(); ++k) {
      EXPECT_EQ(part.logprobs[k].logprob, all.logprobs[k].logprob);
    }
  }
}

}  // namespace hadal::testing
