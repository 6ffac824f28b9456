// Uses one engine from many threads at once, for TSan to check.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "engine/engine.h"
#include "tests/engine/fake_executor.h"
#include "tests/engine/small_model.h"
#include "tests/engine/test_requests.h"

namespace hadal {
namespace {

using testing::ChainConstraint;
using testing::CheckedEngine;
using testing::Collector;
using testing::FakeExecutor;
using testing::Finished;
using testing::greedy_request;
using testing::random_prompt;

constexpr int kNumThreads = 8;

// Each thread submits requests, reads or ignores them, aborts some, and sometimes calls other functions.
void hammer(Engine& engine, int thread_idx, int num_requests, const std::shared_ptr<Collector>& sink,
            std::atomic<int64_t>& num_sunk) {
  std::mt19937_64 random(thread_idx);
  for (int i = 0; i < num_requests; ++i) {
    GenerateRequest request =
        greedy_request(random_prompt(1 + static_cast<int64_t>(random() % 80), random() % 5),
                       1 + static_cast<int64_t>(random() % 20));
    if (random() % 4 == 0) request.constraint = std::make_unique<ChainConstraint>();
    const auto max_new_tokens = static_cast<size_t>(request.sampling.max_new_tokens);
    const bool uses_sink = random() % 2 == 0;
    if (uses_sink) {
      request.sink = sink;
      ++num_sunk;
    }
    const RequestId id = engine.submit(std::move(request)).value();
    const bool aborts = random() % 3 == 0;
    if (aborts) engine.abort(id);
    if (!uses_sink) {
      const Finished result = testing::drain(engine, id);
      if (result.last.finish_reason == FinishReason::kLength) {
        EXPECT_EQ(result.ids.size(), max_new_tokens);
      } else {
        EXPECT_TRUE(aborts);
        EXPECT_EQ(result.last.finish_reason, FinishReason::kAbort);
      }
    }
    if (random() % 16 == 0) engine.check_integrity();
    if (random() % 32 == 0) (void)engine.flush_cache();
    if (random() % 32 == 0) {
      engine.pause();
      engine.resume();
    }
  }
}

void run_hammers(const CheckedEngine& engine, int num_requests) {
  const auto sink = std::make_shared<Collector>();
  std::atomic<int64_t> num_sunk = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kNumThreads; ++i) {
    threads.emplace_back([&, i] { hammer(*engine, i, num_requests, sink, num_sunk); });
  }
  std::atomic<bool> done = false;
  std::thread watcher([&] {
    while (!done) EXPECT_GT(engine->stats().max_total_tokens, 0);
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  watcher.join();
  sink->wait_finished(num_sunk);
  EXPECT_EQ(engine->stats().num_requests, kNumThreads * num_requests);
  EXPECT_EQ(engine->stats().scheduler.num_used_tokens, 0);
}

TEST(EngineConcurrency, ManyThreadsMaySubmitAndAbort) {
  for (const bool overlap : {false, true}) {
    EngineOptions options{.max_total_tokens = 1024, .max_running_requests = 8, .chunked_prefill_size = 64};
    options.overlap_schedule = overlap;
    options.schedule_conservativeness = 0.1;
    options.context_length = 4096;
    options.decode_log_interval = 0;
    options.watchdog_timeout_s = 600;
    run_hammers(
        CheckedEngine(
            Engine::create(std::make_unique<FakeExecutor>(), testing::fake_config(), options).value()),
        60);
  }
}

TEST(EngineConcurrency, ManyThreadsMayShareAModelAndItsWorker) {
  ThreadPool pool(2);
  const std::unique_ptr<Model> model = testing::make_small_model("v2-lite", pool);
  EngineOptions options{.max_total_tokens = 1024, .max_running_requests = 8, .chunked_prefill_size = 64};
  options.decode_log_interval = 0;
  run_hammers(CheckedEngine(Engine::create(*model, pool, options).value()), 5);
}

}  // namespace
}  // namespace hadal
