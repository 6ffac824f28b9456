// The plain loop is the oracle of the overlapped one: for every mix of requests, and wherever memory runs
// out, the tokens and the bits of log-probabilities are the same.
#include <gtest/gtest.h>

#include <random>

#include "engine/engine.h"
#include "tests/engine/small_model.h"
#include "tests/engine/test_requests.h"

namespace hadal {
namespace {

using testing::ChainConstraint;
using testing::CheckedEngine;
using testing::Collector;
using testing::Finished;
using testing::greedy_request;
using testing::random_prompt;
using testing::StopAfter;

constexpr int kNumRequests = 24;

// Returns request i of a mix, always the same one.
GenerateRequest mixed_request(uint64_t seed, int i) {
  std::mt19937_64 random(seed * 1000 + i);
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  std::vector<int32_t> ids = random_prompt(1 + below(150), seed * 1000 + i);
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
  if (below(3) == 0) sampling.stop_token_ids = {static_cast<int32_t>(below(testing::kVocab))};
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

bool is_aborted(uint64_t seed, int i) {
  return (seed + i) % 6 == 0;
}

struct MixResult {
  std::vector<Finished> finished;
  EngineStats stats;
};

class OverlapTest : public ::testing::Test {
 protected:
  // If with_aborts, some requests are aborted, each after its own number of tokens.
  MixResult run_mix(uint64_t seed, EngineOptions options, bool with_aborts = false) {
    options.decode_log_interval = 0;
    const CheckedEngine engine(Engine::create(*model_, pool_, options).value());
    const auto sink = std::make_shared<Collector>();
    std::vector<RequestId> ids;
    for (int i = 0; i < kNumRequests; ++i) {
      GenerateRequest request = mixed_request(seed, i);
      request.sink = sink;
      ids.push_back(engine->submit(std::move(request)).value());
      if (i == kNumRequests / 2) sink->wait_tokens(ids[0], 1);  // the second half arrives at a busy engine
    }
    if (with_aborts) {
      for (int i = 0; i < kNumRequests; ++i) {
        if (!is_aborted(seed, i)) continue;
        sink->wait_tokens(ids[i], i % 5);
        engine->abort(ids[i]);
        engine->check_integrity();
      }
    }
    sink->wait_finished(kNumRequests);
    MixResult result;
    for (const RequestId id : ids) result.finished.push_back(sink->result(id));
    result.stats = engine->stats();
    return result;
  }

  static void expect_same_mix(const MixResult& a, const MixResult& b) {
    for (int i = 0; i < kNumRequests; ++i) {
      SCOPED_TRACE(i);
      testing::expect_same(a.finished[i], b.finished[i]);
      EXPECT_EQ(a.finished[i].last.finish_reason, b.finished[i].last.finish_reason);
      EXPECT_EQ(a.finished[i].last.matched, b.finished[i].last.matched);
      EXPECT_EQ(a.finished[i].last.completion_tokens, b.finished[i].last.completion_tokens);
    }
  }

  ThreadPool pool_{2};
  std::unique_ptr<Model> model_ = testing::make_small_model("v3", pool_);
};

constexpr int64_t kTinyPool = 64 * 7;

TEST_F(OverlapTest, BothLoopsGiveTheSameBits) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    EngineOptions options{.max_total_tokens = 16384, .max_running_requests = 32, .chunked_prefill_size = 96};
    options.overlap_schedule = false;
    const MixResult plain = run_mix(seed, options);
    options.overlap_schedule = true;
    const MixResult overlapped = run_mix(seed, options);
    expect_same_mix(plain, overlapped);
    EXPECT_EQ(plain.stats.generation_tokens, overlapped.stats.generation_tokens);
    for (const Finished& finished : plain.finished) {
      EXPECT_NE(finished.last.finish_reason, FinishReason::kAbort) << finished.last.matched;
    }
  }
}

// Every mask is late at least once, so that constrained rows leave the steps and are computed again.
TEST_F(OverlapTest, LateMasksChangeNothing) {
  for (const uint64_t seed : {1, 4, 5}) {
    SCOPED_TRACE(seed);
    EngineOptions options{.max_total_tokens = 16384, .max_running_requests = 32, .chunked_prefill_size = 96};
    const MixResult in_time = run_mix(seed, options);
    for (const int64_t tokens : {int64_t{16384}, kTinyPool}) {
      options.max_total_tokens = tokens;
      options.schedule_conservativeness = tokens == kTinyPool ? 0.05 : 1.0;
      for (const bool overlap : {false, true}) {
        SCOPED_TRACE(::testing::Message() << "overlap " << overlap << " tokens " << tokens);
        options.overlap_schedule = overlap;
        options.mask_wait_share = 0.0;
        expect_same_mix(in_time, run_mix(seed, options));
      }
    }
  }
}

TEST_F(OverlapTest, RetractionAndTheCacheChangeNothing) {
  int64_t retractions = 0;
  for (const uint64_t seed : {4, 5}) {
    SCOPED_TRACE(seed);
    EngineOptions options{.max_total_tokens = 16384, .max_running_requests = 32};
    options.overlap_schedule = false;
    options.enable_radix_cache = false;
    const MixResult oracle = run_mix(seed, options);
    options.max_total_tokens = kTinyPool;
    options.schedule_conservativeness = 0.05;  // admits too many on purpose
    for (const bool overlap : {false, true}) {
      for (const bool cache : {false, true}) {
        SCOPED_TRACE(::testing::Message() << "overlap " << overlap << " cache " << cache);
        options.overlap_schedule = overlap;
        options.enable_radix_cache = cache;
        const MixResult squeezed = run_mix(seed, options);
        expect_same_mix(oracle, squeezed);
        retractions += squeezed.stats.scheduler.total_retractions;
      }
    }
  }
  EXPECT_GT(retractions, 0);
}

// The answer of an aborted request is a beginning of the full answer; the others are complete.
TEST_F(OverlapTest, AbortsAtAnyMomentLeaveTheOthersAlone) {
  for (const uint64_t seed : {6, 7}) {
    SCOPED_TRACE(seed);
    EngineOptions options{.max_total_tokens = 16384, .max_running_requests = 32};
    options.overlap_schedule = false;
    const MixResult oracle = run_mix(seed, options);
    for (const int64_t tokens : {int64_t{16384}, kTinyPool}) {
      options.max_total_tokens = tokens;
      options.schedule_conservativeness = tokens == kTinyPool ? 0.05 : 1.0;
      options.overlap_schedule = true;
      const MixResult cut = run_mix(seed, options, /*with_aborts=*/true);
      for (int i = 0; i < kNumRequests; ++i) {
        SCOPED_TRACE(i);
        const Finished& whole = oracle.finished[i];
        const Finished& part = cut.finished[i];
        if (part.last.finish_reason != FinishReason::kAbort) {
          testing::expect_same(whole, part);
          continue;
        }
        EXPECT_TRUE(is_aborted(seed, i));
        ASSERT_LE(part.ids.size(), whole.ids.size());
        for (size_t k = 0; k < part.ids.size(); ++k) EXPECT_EQ(part.ids[k], whole.ids[k]);
        for (size_t k = 0; k < part.logprobs.size(); ++k) {
          EXPECT_EQ(part.logprobs[k].logprob, whole.logprobs[k].logprob);
        }
      }
    }
  }
}

}  // namespace
}  // namespace hadal
