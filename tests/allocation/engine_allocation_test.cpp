// Tests an allocation that fails in the engine: every request ends once, and the engine goes on.
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "engine/engine.h"
#include "scheduler/plan_record.h"
#include "tests/allocation/failing_allocator.h"
#include "tests/engine/fake_executor.h"
#include "tests/engine/test_requests.h"

namespace hadal {
namespace {

using testing::Exempt;
using testing::Failure;
using testing::Finished;
using testing::greedy_request;
using testing::token_at;
using testing::Victims;

// The memory of this executor never fails, because the executor stands for a device. It marks the engine
// thread.
class SafeExecutor final : public StepExecutor {
 public:
  void launch(StagedStep step) override {
    testing::mark_this_thread();
    const Exempt exempt;
    executor_.launch(std::move(step));
  }
  void set_masks(int64_t step, std::vector<uint32_t> masks) override {
    const Exempt exempt;
    executor_.set_masks(step, std::move(masks));
  }
  StepOutput wait() override {
    const Exempt exempt;
    return executor_.wait();
  }

 private:
  testing::FakeExecutor executor_;
};

// This constraint allows every token. Its allocations belong to its request.
class AnyToken final : public TokenConstraint {
 public:
  void fill_mask(std::span<uint32_t> allowed) override {
    const auto scratch = std::make_unique<std::vector<uint32_t>>(allowed.size(), ~uint32_t{0});
    std::copy(scratch->begin(), scratch->end(), allowed.begin());
  }
  bool accept_token(int32_t) override { return true; }
  void rollback(int64_t) override {}
};

class FailingEngine : public ::testing::TestWithParam<bool> {
 protected:
  FailingEngine() {
    set_log_level(LogLevel::kOff);
    start_engine();
    run_normally();
  }
  ~FailingEngine() override { set_log_level(LogLevel::kInfo); }

  // `record` is the file for the engine's plans, or empty.
  void start_engine(const std::string& record = {}) {
    EngineOptions options;
    options.max_total_tokens = 4096;
    options.context_length = 2048;
    options.max_running_requests = 4;
    options.max_queued_requests = 8;
    options.decode_log_interval = 0;
    options.overlap_schedule = GetParam();
    options.record_plans = record;
    options.on_failure = [this](const std::string&) { has_failed_ = true; };
    engine_.reset();
    engine_ = Engine::create(std::make_unique<SafeExecutor>(), testing::fake_config(), options).value();
  }

  std::vector<GenerateRequest> requests() {
    std::vector<GenerateRequest> out;
    out.push_back(greedy_request(testing::random_prompt(70, 1), 6));
    out.push_back(greedy_request(testing::random_prompt(130, 2), 3));
    out.back().logprobs = {.enabled = true, .start = 0, .top_num = 2};
    out.push_back(greedy_request(testing::random_prompt(5, 3), 5));
    out.back().constraint = std::make_unique<AnyToken>();
    out.push_back(greedy_request(testing::random_prompt(5, 4), 1));
    return out;
  }

  // Checks that requests end as they do when nothing fails.
  void run_normally() {
    const Finished plain = testing::run(*engine_, greedy_request(testing::random_prompt(70, 1), 6));
    EXPECT_EQ(plain.last.finish_reason, FinishReason::kLength);
    ASSERT_EQ(plain.ids.size(), 6U);
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(plain.ids[static_cast<size_t>(i)], token_at(70 + i));
    GenerateRequest constrained = greedy_request(testing::random_prompt(5, 3), 5);
    constrained.constraint = std::make_unique<AnyToken>();
    EXPECT_EQ(testing::run(*engine_, std::move(constrained)).last.finish_reason, FinishReason::kLength);
    engine_->check_integrity();
    EXPECT_FALSE(has_failed_);
    EXPECT_EQ(engine_->stats().scheduler.num_queued, 0);
  }

  // Returns how many requests were aborted. Each of the others is complete.
  int run_with(int64_t k, Victims victims, Failure failure, bool& has_fired) {
    std::vector<GenerateRequest> wanted = requests();
    std::vector<std::pair<RequestId, int64_t>> ids;
    engine_->pause();
    for (GenerateRequest& request : wanted) {
      const int64_t length = request.sampling.max_new_tokens;
      ids.emplace_back(engine_->submit(std::move(request)).value(), length);
    }
    const Exempt exempt;
    testing::fail_allocation(k, victims, failure);
    engine_->resume();
    int num_aborted = 0;
    for (const auto& [id, length] : ids) {
      const Finished result = testing::drain(*engine_, id);
      if (result.last.finish_reason == FinishReason::kAbort) {
        ++num_aborted;
        EXPECT_EQ(result.last.abort_reason, AbortReason::kMemory) << result.last.abort_text;
        EXPECT_FALSE(result.last.abort_text.empty());
      } else {
        EXPECT_EQ(result.last.finish_reason, FinishReason::kLength);
        EXPECT_EQ(static_cast<int64_t>(result.ids.size()), length);
      }
    }
    has_fired = testing::stop_failing();
    return num_aborted;
  }

  bool has_failed_ = false;
  std::unique_ptr<Engine> engine_;
};

TEST_P(FailingEngine, WithoutAReserveAllRequestsEndAndTheEngineBeginsAnew) {
  int num_aborted = 0;
  int64_t k = 0;
  for (bool has_fired = true; has_fired;) {
    ++k;
    SCOPED_TRACE(fmt::format("call {}", k));
    num_aborted += run_with(k, Victims::kMarked, Failure::kAtOnce, has_fired);
    run_normally();
    if (HasFailure()) return;
  }
  EXPECT_GT(k, 50);
  EXPECT_GT(num_aborted, 0);
}

// While the engine goes on, the file is complete, whichever allocation failed, even one of the record's own.
TEST_P(FailingEngine, ARecordOfPlansEndsWithALineAndReplaysWhenTheEngineBeginsAnew) {
  const std::string path = ::testing::TempDir() + "/anew_" + (GetParam() ? "o" : "p") + ".jsonl";
  set_log_level(LogLevel::kWarning);
  int num_ended = 0;
  int64_t num_plans = 0;
  for (int64_t k = 1;; k += 3) {
    SCOPED_TRACE(fmt::format("call {}", k));
    start_engine(path);
    ::testing::internal::CaptureStderr();
    bool has_fired = false;
    run_with(k, Victims::kMarked, Failure::kAtOnce, has_fired);
    run_normally();
    const std::string log = ::testing::internal::GetCapturedStderr();
    const bool began_anew = log.find("engine had no memory") != std::string::npos;
    EXPECT_EQ(log.find("record of plans ended path=" + path) != std::string::npos, began_anew) << log;
    if (!began_anew) start_engine();  // closes the file
    std::ifstream record(path);
    const auto replay = replay_plans(record);
    ASSERT_TRUE(replay.ok()) << replay.status().message;
    EXPECT_EQ(replay->difference, "");
    if (began_anew) {
      ++num_ended;
      num_plans += replay->num_plans;
    }
    if (HasFailure() || !has_fired) break;
  }
  EXPECT_GT(num_ended, 10);
  EXPECT_GT(num_plans, 10);
}

TEST_P(FailingEngine, WithAReserveOnlyTheRequestWhoseOwnMemoryFailsEnds) {
  const MemoryReserve reserve;
  ASSERT_EQ(MemoryReserve::num_blocks(), MemoryReserve::kBlocks);
  int num_aborted = 0;
  int64_t k = 0;
  for (bool has_fired = true; has_fired;) {
    ++k;
    SCOPED_TRACE(fmt::format("call {}", k));
    const int of_this_call = run_with(k, Victims::kAll, Failure::kWithHandler, has_fired);
    EXPECT_LE(of_this_call, 1);
    num_aborted += of_this_call;
    run_normally();
    EXPECT_EQ(MemoryReserve::num_blocks(), MemoryReserve::kBlocks);
    if (HasFailure()) return;
  }
  EXPECT_GT(k, 50);
  EXPECT_GT(num_aborted, 0);  // because allocations of masks failed
}

// The caller gets the exception, and the place in the queue is free again.
TEST_P(FailingEngine, ASubmitThatFailsLeavesNothingBehind) {
  int64_t num_failures = 0;
  for (int64_t k = 1; k < 1000; ++k) {
    GenerateRequest request = greedy_request(testing::random_prompt(70, 1), 2);
    RequestId id = 0;
    testing::mark_this_thread();
    testing::fail_allocation(k, Victims::kMarked, Failure::kAtOnce);
    try {
      id = engine_->submit(std::move(request)).value();
    } catch (const std::bad_alloc&) {
      ++num_failures;
    }
    const bool has_fired = testing::stop_failing();
    if (id != 0) testing::drain(*engine_, id);
    if (!has_fired) break;
  }
  // Two allocations always happen, that of the sequence and that of its tokens, and each fails once. The
  // queue may still have room if the engine thread is slow.
  EXPECT_GE(num_failures, 2);
  run_normally();
  EXPECT_EQ(engine_->drain(std::chrono::minutes(1)), 0);
}

INSTANTIATE_TEST_SUITE_P(Loops, FailingEngine, ::testing::Bool(),
                         [](const auto& instance) { return instance.param ? "Overlapped" : "Plain"; });

}  // namespace
}  // namespace hadal
