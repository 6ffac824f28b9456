// The plain loop is the oracle of the overlapped one: for every mix of requests, and wherever memory runs
// out, the tokens and the bits of log-probabilities are the same.
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "tests/engine/request_mix.h"
#include "tests/engine/small_model.h"

namespace hadal {
namespace {

using testing::CheckedEngine;
using testing::expect_beginnings;
using testing::expect_same_mix;
using testing::Finished;
using testing::MixResult;

class OverlapTest : public ::testing::Test {
 protected:
  MixResult run_mix(uint64_t seed, EngineOptions options, bool with_aborts = false) {
    options.decode_log_interval = 0;
    return testing::run_mix(CheckedEngine(Engine::create(*model_, pool_, options).value()), seed,
                            with_aborts);
  }

  ThreadPool pool_{2};
  std::unique_ptr<Model> model_ = testing::make_small_model("v3", pool_);
};

constexpr int64_t kTinyPool = 64 * 7;

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
      EXPECT_NE(finished.last.finish_reason, FinishReason::kAbort) << finished.last.matched;
    }
  }
}

// Every mask is late at least once, so that constrained rows leave the steps and are computed again.
TEST_F(OverlapTest, LateMasksChangeNothing) {
  for (const uint64_t seed : {1, 4}) {
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
      expect_beginnings(seed, oracle, cut);
    }
  }
}

}  // namespace
}  // namespace hadal
