// Tests everything about requests that needs no model: submitting, waiting, failing and ending.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "engine/engine.h"
#include "scheduler/plan_record.h"
#include "tests/engine/fake_executor.h"
#include "tests/engine/test_requests.h"

namespace hadal {
namespace {

using testing::CheckedEngine;
using testing::Collector;
using testing::Door;
using testing::drain;
using testing::FakeExecutor;
using testing::Finished;
using testing::greedy_request;
using ::testing::HasSubstr;
using testing::random_prompt;
using testing::run;
using ::testing::SizeIs;

class LifecycleTest : public ::testing::TestWithParam<bool> {
 protected:
  CheckedEngine make_engine(EngineOptions options = {}, FakeExecutor::Hooks hooks = {}) {
    if (options.max_total_tokens == 0) options.max_total_tokens = 4096;
    options.context_length = 4096;
    options.overlap_schedule = GetParam();
    options.decode_log_interval = 0;
    return CheckedEngine(
        Engine::create(std::make_unique<FakeExecutor>(std::move(hooks)), testing::fake_config(), options)
            .value());
  }
  // Returns the answer of the fake model.
  static std::vector<int32_t> answer(int64_t prompt_len, int64_t count) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < count; ++i) ids.push_back(testing::token_at(prompt_len + i));
    return ids;
  }
};

INSTANTIATE_TEST_SUITE_P(Loop, LifecycleTest, ::testing::Bool(),
                         [](const auto& loop) { return loop.param ? "Overlapped" : "Plain"; });

TEST_P(LifecycleTest, AFullQueueRefusesUntilThereIsRoomAgain) {
  const auto engine = make_engine({.max_running_requests = 1, .max_queued_requests = 2});
  engine->pause();
  std::vector<RequestId> ids;
  for (int i = 0; i < 2; ++i) ids.push_back(engine->submit(greedy_request({1, 2, 3}, 4)).value());
  const auto refused = engine->submit(greedy_request({1, 2, 3}, 4));
  EXPECT_EQ(refused.status().code, StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().message, HasSubstr("2 requests are waiting; allowed: 2"));
  engine->abort(ids[1]);
  EXPECT_EQ(drain(*engine, ids[1]).last.finish_reason, FinishReason::kAbort);
  engine->check_integrity();  // the place is free one turn later
  ids.push_back(engine->submit(greedy_request({1, 2, 3}, 4)).value());
  engine->resume();
  EXPECT_EQ(drain(*engine, ids[0]).ids, answer(3, 4));
  EXPECT_EQ(drain(*engine, ids[2]).ids, answer(3, 4));
}

TEST_P(LifecycleTest, NoStepStartsWhilePaused) {
  std::atomic<int> launches = 0;
  const auto engine = make_engine({}, {.on_wait = {}, .on_launch = [&](const StagedStep&) { ++launches; }});
  engine->pause();
  EXPECT_TRUE(engine->paused());
  const RequestId id = engine->submit(greedy_request({1, 2}, 3)).value();
  engine->check_integrity();
  engine->check_integrity();
  EXPECT_EQ(launches, 0);
  EXPECT_EQ(engine->stats().scheduler.num_queued, 1);
  engine->resume();
  EXPECT_FALSE(engine->paused());
  EXPECT_EQ(drain(*engine, id).ids, answer(2, 3));
}

TEST_P(LifecycleTest, PausedRequestsCanBeAborted) {
  const auto engine = make_engine();
  engine->pause();
  const RequestId id = engine->submit(greedy_request({1, 2}, 3)).value();
  engine->abort(id);
  EXPECT_EQ(drain(*engine, id).last.finish_reason, FinishReason::kAbort);
}

TEST_P(LifecycleTest, DrainingFinishesWhatRunsAndRefusesNewRequests) {
  const auto engine = make_engine();
  const auto sink = std::make_shared<Collector>();
  std::vector<RequestId> ids;
  for (int i = 0; i < 5; ++i) {
    GenerateRequest request = greedy_request({1, 2, 3}, 200);
    request.sink = sink;
    ids.push_back(engine->submit(std::move(request)).value());
  }
  EXPECT_EQ(engine->drain(std::chrono::minutes(5)), 0);
  for (const RequestId id : ids) EXPECT_EQ(sink->result(id).ids, answer(3, 200));
  EXPECT_EQ(engine->submit(greedy_request({1}, 1)).status().code, StatusCode::kCancelled);
  EXPECT_EQ(engine->drain(std::chrono::minutes(5)), 0);
}

TEST_P(LifecycleTest, DrainingAbortsWhatDoesNotEndInTime) {
  Door door;
  // A step takes 10 ms, so that no answer of 4,000 tokens ends between the refusal of new requests and the
  // abort.
  const auto slow_step = [&](const StagedStep&) {
    door.wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return std::string();
  };
  const auto engine = make_engine({}, {.on_wait = slow_step, .on_launch = {}});
  std::vector<RequestId> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(engine->submit(greedy_request({1, 2, 3}, 4000)).value());
  // The step goes on once the engine drains, that is, refuses requests.
  int64_t num_more = 0;
  std::thread opener([&] {
    for (; engine->submit(greedy_request({1}, 1)).ok(); ++num_more) std::this_thread::yield();
    door.open();
  });
  const int64_t num_aborted = engine->drain(std::chrono::milliseconds(0));
  opener.join();
  EXPECT_EQ(num_aborted, 3 + num_more);
  for (const RequestId id : ids) {
    const TokenChunk last = drain(*engine, id).last;
    EXPECT_EQ(last.abort_reason, AbortReason::kShutdown);
    EXPECT_THAT(last.abort_text, HasSubstr("shutting down"));
  }
}

TEST_P(LifecycleTest, DrainingResumesAPausedEngine) {
  const auto engine = make_engine();
  engine->pause();
  const RequestId id = engine->submit(greedy_request({1, 2, 3}, 5)).value();
  EXPECT_EQ(engine->drain(std::chrono::minutes(5)), 0);
  EXPECT_FALSE(engine->paused());
  engine->pause();
  EXPECT_FALSE(engine->paused());
  EXPECT_EQ(drain(*engine, id).ids, answer(3, 5));
}

TEST_P(LifecycleTest, ABrokenInvariantEndsTheEngineAndIsReportedOnce) {
  std::vector<std::string> failures;
  EngineOptions options{.max_total_tokens = 4096, .overlap_schedule = GetParam(), .context_length = 4096};
  options.on_failure = [&](const std::string& why) { failures.push_back(why); };
  FakeExecutor::Hooks hooks{.on_wait = {}, .on_launch = [](const StagedStep&) { throw Error("no step"); }};
  const auto engine =
      Engine::create(std::make_unique<FakeExecutor>(std::move(hooks)), testing::fake_config(), options)
          .value();
  const TokenChunk last = run(*engine, greedy_request({1, 2, 3}, 5)).last;
  EXPECT_EQ(last.abort_reason, AbortReason::kFault);
  EXPECT_THAT(last.abort_text, HasSubstr("no step"));
  EXPECT_EQ(engine->submit(greedy_request({1}, 1)).status().code, StatusCode::kInternal);
  EXPECT_FALSE(engine->flush_cache().ok());
  EXPECT_EQ(failures, std::vector<std::string>{"no step"});
}

TEST_P(LifecycleTest, ADeviceThatFailedEndsTheEngineAfterItsStep) {
  std::vector<std::string> failures;
  EngineOptions options{.max_total_tokens = 4096, .overlap_schedule = GetParam(), .context_length = 4096};
  options.on_failure = [&](const std::string& why) { failures.push_back(why); };
  FakeExecutor::Hooks hooks{.on_wait =
                                [](const StagedStep& step) {
                                  return step.step == 3 ? std::string("the GPU has failed") : std::string();
                                },
                            .on_launch = {},
                            .errors_are_fatal = true};
  const auto engine =
      Engine::create(std::make_unique<FakeExecutor>(std::move(hooks)), testing::fake_config(), options)
          .value();
  const Finished finished = run(*engine, greedy_request({1, 2, 3}, 50));
  EXPECT_EQ(finished.ids, answer(3, 2));
  EXPECT_EQ(finished.last.abort_reason, AbortReason::kFault);
  EXPECT_EQ(finished.last.abort_text, "the GPU has failed");
  EXPECT_EQ(engine->submit(greedy_request({1}, 1)).status().code, StatusCode::kInternal);
  EXPECT_EQ(failures, std::vector<std::string>{"the GPU has failed"});
}

// This constraint makes its masks only while the door is open.
class GuardedConstraint final : public TokenConstraint {
 public:
  explicit GuardedConstraint(testing::Door& door) : door_(door) {}
  void fill_mask(std::span<uint32_t> allowed) override {
    door_.wait();
    for (uint32_t& word : allowed) word = ~0U;
  }
  bool accept_token(int32_t) override { return true; }
  void rollback(int64_t) override {}

 private:
  testing::Door& door_;
};

// Submits a request of five tokens whose masks wait for the door.
RequestId submit_guarded(Engine& engine, testing::Door& door) {
  GenerateRequest request = greedy_request({1, 2, 3}, 5);
  request.constraint = std::make_unique<GuardedConstraint>(door);
  return engine.submit(std::move(request)).value();
}

TEST_P(LifecycleTest, ARowWhoseMaskIsLateDelaysNobody) {
  testing::Door door;
  const auto engine = make_engine();
  const RequestId id = submit_guarded(*engine, door);
  EXPECT_EQ(run(*engine, greedy_request({1, 2, 3}, 50)).ids, answer(3, 50));  // the same prompt, too
  EXPECT_EQ(run(*engine, greedy_request({4, 5, 6}, 50)).ids, answer(3, 50));
  engine->check_integrity();
  EXPECT_FALSE(engine->poll(id, std::chrono::milliseconds(0)).has_value());
  door.open();
  EXPECT_THAT(drain(*engine, id).ids, SizeIs(5));
}

TEST_P(LifecycleTest, ARequestThatAwaitsItsMaskCanBeAborted) {
  testing::Door door;
  const auto engine = make_engine();
  const RequestId id = submit_guarded(*engine, door);
  EXPECT_EQ(run(*engine, greedy_request({4, 5, 6}, 5)).ids, answer(3, 5));
  engine->abort(id);
  EXPECT_EQ(drain(*engine, id).last.abort_reason, AbortReason::kClient);
  door.open();
}

// This constraint uses processor time, as a grammar with many parser states does.
class CostlyConstraint final : public TokenConstraint {
 public:
  void fill_mask(std::span<uint32_t> allowed) override {
    const clock_t begin = clock();  // counts all threads of the process
    while (clock() - begin < CLOCKS_PER_SEC / 4) {
    }
    for (uint32_t& word : allowed) word = ~0U;
  }
  bool accept_token(int32_t) override { return true; }
  void rollback(int64_t) override {}
};

TEST_P(LifecycleTest, AConstraintThatIsTooExpensiveEndsItsRequestWithOneError) {
  const auto engine = make_engine();
  GenerateRequest costly = greedy_request({1, 2, 3}, 1000);
  costly.constraint = std::make_unique<CostlyConstraint>();
  const RequestId id = engine->submit(std::move(costly)).value();
  EXPECT_EQ(run(*engine, greedy_request({4, 5, 6}, 50)).ids, answer(3, 50));
  const Finished result = drain(*engine, id);
  EXPECT_EQ(result.last.abort_reason, AbortReason::kRequest);
  EXPECT_THAT(result.last.abort_text, HasSubstr("the grammar is too expensive"));
  EXPECT_LT(result.ids.size(), 200U);
}

TEST_P(LifecycleTest, AbortAllEndsAllPresentRequestsAndNoLaterOnes) {
  const auto engine = make_engine();
  engine->pause();
  const RequestId before = engine->submit(greedy_request({1, 2, 3}, 5)).value();
  engine->abort_all();
  const RequestId after = engine->submit(greedy_request({1, 2, 3}, 5)).value();
  engine->resume();
  EXPECT_EQ(drain(*engine, before).last.abort_reason, AbortReason::kClient);
  EXPECT_EQ(drain(*engine, after).ids, answer(3, 5));
  EXPECT_EQ(engine->stats().num_aborted, 1);
}

TEST_P(LifecycleTest, ChunksWaitForTheStreamInterval) {
  const auto engine = make_engine();
  const auto sink = std::make_shared<Collector>();
  GenerateRequest request = greedy_request({1, 2, 3}, 10);
  request.stream_interval = 4;
  request.sink = sink;
  const RequestId id = engine->submit(std::move(request)).value();
  sink->wait_finished(1);
  EXPECT_EQ(sink->result(id).ids, answer(3, 10));
  EXPECT_EQ(sink->result(id).num_chunks, 3);  // 4, 4, 2
  EXPECT_FALSE(engine->stream(id).has_value());
}

TEST_P(LifecycleTest, ASinkIsCalledOncePerStepForAllItsRequests) {
  const auto engine = make_engine({.enable_radix_cache = false});
  const auto sink = std::make_shared<Collector>();
  engine->pause();
  for (int i = 0; i < 20; ++i) {
    GenerateRequest request = greedy_request({1, 2, 3}, 10);
    request.sink = sink;
    ASSERT_TRUE(engine->submit(std::move(request)).ok());
  }
  engine->resume();
  sink->wait_finished(20);
  EXPECT_EQ(sink->num_calls(), 10);
}

class ThrowingSink final : public ChunkSink {
 public:
  void on_chunks(std::vector<TokenChunk>&) override { throw Error("no more room"); }
};
class ThrowingStop final : public StopCondition {
 public:
  bool on_token(int32_t) override { throw Error("stop is broken"); }
};
class ThrowingConstraint final : public TokenConstraint {
 public:
  void fill_mask(std::span<uint32_t>) override { throw Error("mask is broken"); }
  bool accept_token(int32_t) override { return true; }
  void rollback(int64_t) override {}
};

TEST_P(LifecycleTest, ACallbackThatThrowsFailsItsOwnRequestOnly) {
  const auto engine = make_engine();
  engine->pause();
  GenerateRequest sink = greedy_request({1, 2, 3}, 50);
  sink.sink = std::make_shared<ThrowingSink>();
  ASSERT_TRUE(engine->submit(std::move(sink)).ok());
  GenerateRequest stop = greedy_request({1, 2, 3}, 50);
  stop.stop = std::make_unique<ThrowingStop>();
  const RequestId stop_id = engine->submit(std::move(stop)).value();
  GenerateRequest constraint = greedy_request({1, 2, 3}, 50);
  constraint.constraint = std::make_unique<ThrowingConstraint>();
  const RequestId constraint_id = engine->submit(std::move(constraint)).value();
  const RequestId good = engine->submit(greedy_request({1, 2, 3}, 50)).value();
  engine->resume();
  EXPECT_THAT(drain(*engine, stop_id).last.abort_text, HasSubstr("stop is broken"));
  EXPECT_THAT(drain(*engine, constraint_id).last.abort_text, HasSubstr("mask is broken"));
  EXPECT_EQ(drain(*engine, good).ids, answer(3, 50));
  EXPECT_EQ(engine->stats().num_aborted, 3);
}

TEST_P(LifecycleTest, AFailedStepFailsItsRequestsAndTheEngineContinues) {
  const auto engine = make_engine({}, {.on_wait =
                                           [](const StagedStep& step) {
                                             return step.step == 4 ? std::string("no memory") : std::string();
                                           },
                                       .on_launch = {}});
  const RequestId doomed = engine->submit(greedy_request({1, 2, 3}, 50)).value();
  const Finished result = drain(*engine, doomed);
  EXPECT_EQ(result.last.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(result.last.abort_text, "no memory");
  EXPECT_EQ(result.ids, answer(3, 3));
  engine->check_integrity();
  EXPECT_EQ(run(*engine, greedy_request({1, 2, 3}, 50)).ids, answer(3, 50));
}

TEST_P(LifecycleTest, ARequestInTheQueueEndsWithItsEngine) {
  const auto sink = std::make_shared<Collector>();
  RequestId id = 0;
  {
    const auto engine = make_engine();
    engine->pause();
    GenerateRequest request = greedy_request({1, 2, 3}, 5);
    request.sink = sink;
    id = engine->submit(std::move(request)).value();
  }
  EXPECT_EQ(sink->result(id).last.finish_reason, FinishReason::kAbort);
}

TEST_P(LifecycleTest, TimingsAndCountersAreFilledIn) {
  const auto engine = make_engine();
  const Finished result = run(*engine, greedy_request(random_prompt(100, 1), 20));
  EXPECT_EQ(result.last.prompt_tokens, 100);
  EXPECT_EQ(result.last.completion_tokens, 20);
  EXPECT_GE(result.last.timings.queue_s, 0.0);
  EXPECT_GT(result.last.timings.prefill_s, 0.0);
  EXPECT_GT(result.last.timings.decode_s, 0.0);
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.generation_tokens, 20);
  EXPECT_EQ(stats.num_requests, 1);
  EXPECT_EQ(stats.max_total_tokens, 4096);
  EXPECT_GE(stats.num_steps, 20);
}

TEST_P(LifecycleTest, StatsSayWhetherTheLastDecodeStepWasAGraph) {
  std::atomic<bool> use_graphs = true;
  FakeExecutor::Hooks hooks;
  hooks.is_graphed = [&](const StagedStep& step) { return use_graphs && step.batch.num_prefill_tokens == 0; };
  const auto engine = make_engine({}, std::move(hooks));
  EXPECT_FALSE(engine->stats().decode_graphed);
  run(*engine, greedy_request({1, 2, 3}, 1));  // a prompt alone: no decode step
  EXPECT_FALSE(engine->stats().decode_graphed);
  run(*engine, greedy_request({1, 2, 3}, 5));
  EXPECT_TRUE(engine->stats().decode_graphed);
  run(*engine, greedy_request({4, 5, 6}, 1));
  EXPECT_TRUE(engine->stats().decode_graphed);
  use_graphs = false;
  run(*engine, greedy_request({1, 2, 3}, 5));
  EXPECT_FALSE(engine->stats().decode_graphed);
}

TEST_P(LifecycleTest, RecordedPlansReplay) {
  const std::string path = ::testing::TempDir() + "/plans_" + (GetParam() ? "o" : "p") + ".jsonl";
  {
    const auto engine =
        make_engine({.max_total_tokens = 512, .max_running_requests = 4, .record_plans = path});
    std::vector<RequestId> ids;
    for (int i = 0; i < 12; ++i) {
      ids.push_back(engine->submit(greedy_request(random_prompt(20 + 10 * i, i % 3), 30)).value());
    }
    engine->abort(ids[3]);
    for (const RequestId id : ids) drain(*engine, id);
  }
  std::ifstream record(path);
  const auto replay = replay_plans(record);
  ASSERT_TRUE(replay.ok()) << replay.status().message;
  EXPECT_EQ(replay->difference, "");
  EXPECT_GE(replay->num_plans, 30);
}

}  // namespace
}  // namespace hadal
