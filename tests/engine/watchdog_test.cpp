// Tests that a hang is reported once, with its phase and request, and that idleness is not reported.
#include "engine/loop/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "engine/engine.h"
#include "tests/engine/fake_executor.h"
#include "tests/engine/test_requests.h"

namespace hadal {
namespace {

using testing::CheckedEngine;
using testing::Door;
using testing::drain;
using testing::FakeExecutor;
using testing::greedy_request;
using ::testing::HasSubstr;

class Reports {
 public:
  std::function<void(const std::string&)> callback() {
    return [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(line);
      changed_.notify_all();
    };
  }
  std::string wait_first() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !lines_.empty(); });
    return lines_[0];
  }
  size_t count() {
    const std::lock_guard lock(mutex_);
    return lines_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
};

EngineOptions watched_options(Reports& reports) {
  EngineOptions options;
  options.max_total_tokens = 4096;
  options.context_length = 4096;
  options.decode_log_interval = 0;
  options.watchdog_timeout_s = 0.02;
  options.on_stall = reports.callback();
  return options;
}

TEST(Watchdog, AHangingStepIsReportedWithItsRequests) {
  Reports reports;
  Door door;
  const CheckedEngine engine(
      Engine::create(std::make_unique<FakeExecutor>(FakeExecutor::Hooks{.on_wait =
                                                                            [&](const StagedStep& step) {
                                                                              if (step.step == 3) door.wait();
                                                                              return std::string();
                                                                            },
                                                                        .on_launch = {}}),
                     testing::fake_config(), watched_options(reports))
          .value());
  const RequestId id = engine->submit(greedy_request({1, 2, 3}, 20)).value();
  const std::string line = reports.wait_first();
  EXPECT_THAT(line, HasSubstr("phase=run"));
  EXPECT_THAT(line, HasSubstr("step=3"));
  EXPECT_THAT(line, HasSubstr(fmt::format("requests={}", id)));
  door.open();
  EXPECT_EQ(drain(*engine, id).last.finish_reason, FinishReason::kLength);
}

class HangingConstraint final : public TokenConstraint {
 public:
  explicit HangingConstraint(Door& door) : door_(door) {}
  void fill_mask(std::span<uint32_t> allowed) override {
    door_.wait();
    for (uint32_t& word : allowed) word = ~0U;
  }
  bool accept_token(int32_t) override { return true; }
  void rollback(int64_t) override {}

 private:
  Door& door_;
};

TEST(Watchdog, AHangingMaskIsReportedWithItsRequest) {
  Reports reports;
  Door door;
  const CheckedEngine engine(
      Engine::create(std::make_unique<FakeExecutor>(), testing::fake_config(), watched_options(reports))
          .value());
  GenerateRequest request = greedy_request({1, 2, 3}, 4);
  request.constraint = std::make_unique<HangingConstraint>(door);
  const RequestId id = engine->submit(std::move(request)).value();
  EXPECT_THAT(reports.wait_first(), HasSubstr(fmt::format("phase=masks in a callback of request {}", id)));
  door.open();
  EXPECT_EQ(drain(*engine, id).last.finish_reason, FinishReason::kLength);
}

// Returns after `count` time-outs of watchdogs that are stalled one after the other.
void let_timeouts_pass(int count) {
  for (int i = 0; i < count; ++i) {
    Reports reports;
    Watchdog watchdog(0.005, reports.callback());
    watchdog.enter("run");
    reports.wait_first();
  }
}

TEST(Watchdog, AStallIsReportedOnceAndIdlenessIsNot) {
  Reports reports;
  Watchdog watchdog(0.005, reports.callback());
  watchdog.idle();
  let_timeouts_pass(10);
  EXPECT_EQ(reports.count(), 0U);
  watchdog.enter("run");
  reports.wait_first();
  let_timeouts_pass(10);
  EXPECT_EQ(reports.count(), 1U);
}

}  // namespace
}  // namespace hadal
