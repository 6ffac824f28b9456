// Tests that V3.2's index keys follow their pages: prefixes of the cache, chunks and retraction never change
// an answer.
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "tests/engine/small_model.h"
#include "tests/engine/test_requests.h"

namespace hadal {
namespace {

using testing::CheckedEngine;
using testing::Finished;
using testing::greedy_request;
using testing::random_prompt;
using testing::run;

class SparseAttention : public ::testing::TestWithParam<KvFormat> {
 protected:
  CheckedEngine make_engine(EngineOptions options = {}) {
    if (options.max_total_tokens == 0) options.max_total_tokens = 4096;
    options.decode_log_interval = 0;
    options.kv_layout = cache_layout(model_->config(), GetParam()).value();
    return CheckedEngine(Engine::create(*model_, pool_, options).value());
  }
  static GenerateRequest scored_request(std::vector<int32_t> ids, int64_t new_tokens, int64_t start = -1) {
    GenerateRequest request = greedy_request(std::move(ids), new_tokens);
    request.logprobs = {.enabled = true, .start = start, .top_num = 2};
    return request;
  }
  // Returns the answer of an engine that caches nothing and computes the prompt at once.
  Finished alone(GenerateRequest request) {
    return run(*make_engine({.chunked_prefill_size = -1, .enable_radix_cache = false}), std::move(request));
  }

  ThreadPool pool_{2};
  std::unique_ptr<Model> model_ = testing::make_small_model("v3.2", pool_);
};

TEST_P(SparseAttention, APrefixThatEndsInsideAPageGivesTheBitsOfNoCache) {
  // Each prefix is longer than index_topk, ends at another offset of a page, and is copied with its index
  // keys.
  const std::vector<int32_t> base = random_prompt(200, 1);
  const std::vector<int64_t> shared = {200, 130, 129, 191, 70, 64, 200};
  std::vector<Finished> expected;
  const auto request = [&](int64_t length) {
    std::vector<int32_t> ids(base.begin(), base.begin() + length);
    const std::vector<int32_t> own = random_prompt(40, length);
    if (length < 200) ids.insert(ids.end(), own.begin(), own.end());
    return scored_request(std::move(ids), 8);
  };
  for (const int64_t length : shared) expected.push_back(alone(request(length)));
  const auto engine = make_engine();
  for (size_t i = 0; i < shared.size(); ++i) {
    const Finished reused = run(*engine, request(shared[i]));
    testing::expect_same(reused, expected[i]);
    if (i > 0) {
      EXPECT_GE(reused.last.cached_tokens, shared[i] - 1);
    }
  }
}

TEST_P(SparseAttention, ChunksGiveTheBitsOfAWholePrompt) {
  const Finished whole = alone(scored_request(random_prompt(150, 3), 6, 0));
  for (const int64_t chunk : {25, 64}) {
    const auto engine = make_engine({.chunked_prefill_size = chunk});
    testing::expect_same(run(*engine, scored_request(random_prompt(150, 3), 6, 0)), whole);
  }
}

TEST_P(SparseAttention, RetractedRequestsGiveTheBitsOfRequestsAlone) {
  const auto request = [](int i) { return scored_request(random_prompt(30 + 11 * i, 70 + i), 70); };
  std::vector<Finished> expected;
  for (int i = 0; i < 5; ++i) expected.push_back(alone(request(i)));
  const auto engine =
      make_engine({.max_total_tokens = 512, .max_running_requests = 5, .schedule_conservativeness = 0.01});
  engine->pause();
  std::vector<RequestId> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(engine->submit(request(i)).value());
  engine->resume();
  for (int i = 0; i < 5; ++i) testing::expect_same(testing::drain(*engine, ids[i]), expected[i]);
  EXPECT_GT(engine->stats().scheduler.total_retractions, 0);
}

TEST_P(SparseAttention, ReferenceKernelsGiveTheSameTokens) {
  const Finished naive =
      run(*make_engine({.kernels = KernelSet::kReference}), greedy_request(random_prompt(70, 6), 6));
  EXPECT_EQ(run(*make_engine(), greedy_request(random_prompt(70, 6), 6)).ids, naive.ids);
}

INSTANTIATE_TEST_SUITE_P(Formats, SparseAttention,
                         ::testing::Values(KvFormat::kF32, KvFormat::kBF16, KvFormat::kFp8E4M3),
                         [](const auto& format) {
                           return format.param == KvFormat::kF32    ? "F32"
                                  : format.param == KvFormat::kBF16 ? "Bf16"
                                                                    : "Fp8";
                         });

}  // namespace
}  // namespace hadal
