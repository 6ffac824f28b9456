// Compares the overlapped loop with the plain loop, which is its oracle: for every mix of requests, and
// wherever memory runs out, the tokens and the bits of log-probabilities are the same.
#include <gtest/gtest.h>

#include <limits>

#include "engine/engine.h"
#include "tests/engine/recorded_plans.h"
#include "tests/engine/request_mix.h"
#include "tests/engine/small_model.h"

namespace hadal {
namespace {

using testing::CheckedEngine;
using testing::expect_beginnings;
using testing::expect_same_mix;
using testing::Finished;
using testing::kFewRequests;
using testing::kNumRequests;
using testing::kTinyPool;
using testing::MixResult;

class OverlapTest : public ::testing::Test {
 protected:
  MixResult run_mix(uint64_t seed, EngineOptions options, int num_requests = kNumRequests,
                    bool with_aborts = false) {
    // Where steps do not wait for masks, masks are never made in time.
    const std::chrono::milliseconds mask_delay(options.mask_wait_share == 0.0 ? 2 : 0);
    const testing::RecordedPlans plans;
    options.record_plans = plans.path();
    options.decode_log_interval = 0;
    MixResult result = testing::run_mix(CheckedEngine(Engine::create(*model_, pool_, options).value()), seed,
                                        with_aborts, num_requests, mask_delay);
    result.num_late_masks = plans.count("\"call\":\"defer\"");
    return result;
  }

  ThreadPool pool_{2};
  std::unique_ptr<Model> model_ = testing::make_small_model("v3", pool_);
};

TEST_F(OverlapTest, BothLoopsGiveTheSameBits) {
  for (const uint64_t seed : {1, 2}) {
    SCOPED_TRACE(seed);
    EngineOptions options{.max_total_tokens = 16384, .max_running_requests = 32, .chunked_prefill_size = 96};
    options.overlap_schedule = false;
    const MixResult plain = run_mix(seed, options);
    options.overlap_schedule = true;
    const MixResult overlapped = run_mix(seed, options);
    expect_same_mix(plain, overlapped);
    EXPECT_EQ(plain.stats.generation_tokens, overlapped.stats.generation_tokens);
    for (const Finished& finished : plain.finished) {
      EXPECT_NE(finished.last.finish_reason, FinishReason::kAbort) << finished.last.abort_text;
    }
  }
}

// Steps do not wait for masks, so that constrained rows leave the steps and are computed again.
TEST_F(OverlapTest, LateMasksChangeNothing) {
  // Rows that leave the steps also leave room, so requests are retracted here only if the pool is smaller.
  constexpr int64_t kTiniestPool = 64 * 5;
  int64_t retractions[2] = {0, 0};  // by loop
  for (const uint64_t seed : {6, 8}) {
    SCOPED_TRACE(seed);
    EngineOptions options{.max_total_tokens = 16384, .max_running_requests = 32, .chunked_prefill_size = 96};
    options.mask_wait_share = std::numeric_limits<double>::infinity();
    const MixResult in_time = run_mix(seed, options, kFewRequests);
    for (const int64_t tokens : {int64_t{16384}, kTiniestPool}) {
      options.max_total_tokens = tokens;
      options.schedule_conservativeness = tokens == kTiniestPool ? 0.05 : 1.0;
      for (const bool overlap : {false, true}) {
        SCOPED_TRACE(::testing::Message() << "overlap " << overlap << " tokens " << tokens);
        options.overlap_schedule = overlap;
        options.mask_wait_share = 0.0;
        const MixResult late = run_mix(seed, options, kFewRequests);
        expect_same_mix(in_time, late);
        EXPECT_GT(late.num_late_masks, 0);
        retractions[overlap ? 1 : 0] += late.stats.scheduler.total_retractions;
      }
    }
  }
  EXPECT_GT(retractions[0], 0);
  EXPECT_GT(retractions[1], 0);
}

TEST_F(OverlapTest, RetractionAndTheCacheChangeNothing) {
  int64_t retractions[2][2] = {{0, 0}, {0, 0}};  // by loop, without and with the cache
  for (const uint64_t seed : {4, 5}) {
    SCOPED_TRACE(seed);
    EngineOptions options{.max_total_tokens = 16384, .max_running_requests = 32};
    options.overlap_schedule = false;
    options.enable_radix_cache = false;
    const MixResult oracle = run_mix(seed, options, kFewRequests);
    EXPECT_EQ(oracle.stats.scheduler.total_retractions, 0);
    options.max_total_tokens = kTinyPool;
    options.schedule_conservativeness = 0.05;  // admits too many on purpose
    for (const bool overlap : {false, true}) {
      for (const bool cache : {false, true}) {
        SCOPED_TRACE(::testing::Message() << "overlap " << overlap << " cache " << cache);
        options.overlap_schedule = overlap;
        options.enable_radix_cache = cache;
        const MixResult squeezed = run_mix(seed, options, kFewRequests);
        expect_same_mix(oracle, squeezed);
        retractions[overlap ? 1 : 0][cache ? 1 : 0] += squeezed.stats.scheduler.total_retractions;
      }
    }
  }
  for (const auto& of_loop : retractions) {
    for (const int64_t count : of_loop) EXPECT_GT(count, 0);
  }
}

// The answer of an aborted request is a beginning of the full answer; the others are complete.
TEST_F(OverlapTest, AbortsAtAnyMomentLeaveTheOthersAlone) {
  int num_cut = 0;
  for (const uint64_t seed : {6, 7}) {
    SCOPED_TRACE(seed);
    EngineOptions options{.max_total_tokens = 16384, .max_running_requests = 32};
    options.overlap_schedule = false;
    const MixResult oracle = run_mix(seed, options, kFewRequests);
    for (const int64_t tokens : {int64_t{16384}, kTinyPool}) {
      options.max_total_tokens = tokens;
      options.schedule_conservativeness = tokens == kTinyPool ? 0.05 : 1.0;
      options.overlap_schedule = true;
      const MixResult cut = run_mix(seed, options, kFewRequests, /*with_aborts=*/true);
      expect_beginnings(seed, oracle, cut, num_cut);
    }
  }
  EXPECT_GT(num_cut, 0);
}

}  // namespace
}  // namespace hadal
