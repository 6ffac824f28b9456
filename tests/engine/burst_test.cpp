// Tests that a burst of one client, such as thousands of aborts or choices, costs the engine thread little in
// each turn.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tests/engine/fake_executor.h"
#include "tests/engine/test_requests.h"

namespace hadal {
namespace {

using testing::CheckedEngine;
using testing::Collector;
using testing::Door;
using testing::drain;
using testing::FakeExecutor;
using testing::greedy_request;

constexpr int64_t kBurst = 5000;

class BurstTest : public ::testing::TestWithParam<bool> {
 protected:
  static std::unique_ptr<Engine> make_unchecked(FakeExecutor::Hooks hooks = {}) {
    const EngineOptions options{.max_total_tokens = 1 << 16,
                                .max_running_requests = 8,
                                .overlap_schedule = GetParam(),
                                .context_length = 4096,
                                .decode_log_interval = 0};
    return Engine::create(std::make_unique<FakeExecutor>(std::move(hooks)), testing::fake_config(), options)
        .value();
  }
  static CheckedEngine make_engine(FakeExecutor::Hooks hooks = {}) {
    return CheckedEngine(make_unchecked(std::move(hooks)));
  }
  // Submits kBurst requests and then aborts all of them.
  static void submit_and_abort(Engine& engine, const std::shared_ptr<Collector>& sink,
                               int64_t max_new_tokens) {
    std::vector<RequestId> ids;
    for (int64_t i = 0; i < kBurst; ++i) {
      GenerateRequest request = greedy_request({1, 2, 3}, max_new_tokens);
      request.sink = sink;
      ids.push_back(engine.submit(std::move(request)).value());
    }
    for (const RequestId id : ids) engine.abort(id);
  }
};

INSTANTIATE_TEST_SUITE_P(Loop, BurstTest, ::testing::Bool(),
                         [](const auto& loop) { return loop.param ? "Overlapped" : "Plain"; });

TEST_P(BurstTest, ManyAbortsTakeSeveralTurnsAndASubmitDoesNotWaitForThem) {
  Door begun, pushed;
  Engine* running = nullptr;
  bool is_first = true;
  std::vector<EngineStats> turns;  // as they were published before each step
  const auto engine = make_engine({.on_launch = [&](const StagedStep&) {
    if (std::exchange(is_first, false)) {
      begun.open();
      pushed.wait();
    } else {
      turns.push_back(running->stats());
    }
  }});
  running = &*engine;
  const RequestId working = engine->submit(greedy_request({1, 2, 3}, 100)).value();
  begun.wait();
  const auto sink = std::make_shared<Collector>();
  submit_and_abort(*engine, sink, 1000);
  const RequestId later = engine->submit(greedy_request({1, 2, 3}, 20)).value();
  pushed.open();
  EXPECT_EQ(drain(*engine, later).ids.size(), 20U);
  EXPECT_EQ(drain(*engine, working).ids.size(), 100U);
  sink->wait_finished(kBurst);

  int64_t aborted = 0;
  int64_t most = 0;
  bool is_submitted_before = false;
  for (const EngineStats& turn : turns) {
    most = std::max(most, turn.num_aborted - aborted);
    aborted = turn.num_aborted;
    is_submitted_before = is_submitted_before || (turn.num_requests == kBurst + 2 && aborted < kBurst);
  }
  EXPECT_EQ(aborted, kBurst);
  EXPECT_LE(most, 1024);
  EXPECT_TRUE(is_submitted_before);
}

TEST_P(BurstTest, ACallWaitsForAllEarlierAbortsEvenIfTheEngineIsIdle) {
  const auto engine = make_engine();
  engine->pause();
  const auto sink = std::make_shared<Collector>();
  for (int round = 0; round < 3; ++round) {
    submit_and_abort(*engine, sink, 4);
    const Result<void> flushed = engine->flush_cache();
    EXPECT_TRUE(flushed.ok()) << flushed.status().message;
    sink->wait_finished((round + 1) * kBurst);
  }
  EXPECT_EQ(engine->stats().num_aborted, 3 * kBurst);
}

TEST_P(BurstTest, AStoppedEngineHandlesEveryAbortAndEndsTheRest) {
  const auto sink = std::make_shared<Collector>();
  {
    Door begun, pushed;
    bool is_first = true;
    const auto engine = make_unchecked({.on_launch = [&](const StagedStep&) {
      if (!std::exchange(is_first, false)) return;
      begun.open();
      pushed.wait();
    }});
    const auto submit = [&] {
      GenerateRequest request = greedy_request({1, 2, 3}, 1000);
      request.sink = sink;
      engine->submit(std::move(request)).value();
    };
    submit();
    begun.wait();
    submit_and_abort(*engine, sink, 1000);
    submit();
    pushed.open();
  }
  sink->wait_finished(kBurst + 2);
}

// A count of a long prompt takes milliseconds, and a client may ask for 128 choices.
TEST_P(BurstTest, ChoicesOfOnePromptShareTheTokensThatArePenalised) {
  std::set<const int32_t*> counted;
  size_t num_counted = 0;
  bool has_prompt_without_need = false;
  {
    const auto engine = make_engine({.on_launch = [&](const StagedStep& step) {
      for (const SlotStart& start : step.slots) {
        const std::span<const int32_t> prompt = start.history.prompt();
        if (start.sampling.repetition_penalty != 1.0F) {
          ++num_counted;
          counted.insert(prompt.data());
          EXPECT_EQ(std::vector<int32_t>(prompt.begin(), prompt.end()), (std::vector<int32_t>{5, 6, 9}));
        } else {
          has_prompt_without_need = has_prompt_without_need || !prompt.empty();
        }
      }
    }});
    const TokenIds prompt{9, 5, 6, 5, 5, 9};
    std::vector<RequestId> ids;
    for (const float penalty : {1.5F, 1.0F}) {
      for (int choice = 0; choice < 20; ++choice) {
        GenerateRequest request = greedy_request({}, 3);
        request.input_ids = prompt;
        request.sampling.repetition_penalty = penalty;
        request.sampling.frequency_penalty = 0.5F;
        ids.push_back(engine->submit(std::move(request)).value());
      }
    }
    for (const RequestId id : ids) EXPECT_EQ(drain(*engine, id).ids.size(), 3U);
  }
  EXPECT_EQ(num_counted, 20U);
  EXPECT_EQ(counted.size(), 1U);
  EXPECT_FALSE(has_prompt_without_need);
}

}  // namespace
}  // namespace hadal
