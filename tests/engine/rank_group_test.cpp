// Tests that a group of ranks answers like one executor, and that whatever happens to one rank ends every
// request once. The executors have no model, so the tests need no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "engine/cuda/rank_group_executor.h"
#include "engine/cuda/rank_group_runner.h"
#include "engine/engine.h"
#include "tests/comm/ranks.h"
#include "tests/engine/fake_executor.h"
#include "tests/engine/test_requests.h"

namespace hadal {
namespace {

using testing::CheckedEngine;
using testing::FakeExecutor;
using testing::Finished;
using testing::greedy_request;
using ::testing::HasSubstr;
using testing::kPatient;
using testing::random_prompt;

constexpr int kRanks = 3;
using Hooks = FakeExecutor::Hooks;

// Makes executors with the hooks of hooks(rank).
template <typename HooksOf>
RankGroupExecutor::MakeRank fakes(const HooksOf& hooks_of) {
  return [hooks_of](int rank, Communicator&) -> std::unique_ptr<StepExecutor> {
    return std::make_unique<FakeExecutor>(hooks_of(rank));
  };
}

std::unique_ptr<Engine> engine_over(std::unique_ptr<StepExecutor> executor) {
  const EngineOptions options{
      .max_total_tokens = 4096, .max_running_requests = 16, .context_length = 1024, .decode_log_interval = 0};
  return Engine::create(std::move(executor), testing::fake_config(), options).value();
}

std::unique_ptr<Engine> engine_over(RankGroupExecutor::MakeRank make_rank,
                                    std::chrono::milliseconds deadline = kPatient) {
  return engine_over(std::make_unique<RankGroupExecutor>(kRanks, deadline, std::move(make_rank)));
}

std::vector<Finished> answers(Engine& engine) {
  std::vector<RequestId> ids;
  for (int i = 0; i < 12; ++i) {
    GenerateRequest request = greedy_request(random_prompt(3 + 29 * i, 40 + i), 12);
    if (i % 3 == 0) request.constraint = std::make_unique<testing::ChainConstraint>();
    ids.push_back(engine.submit(std::move(request)).value());
  }
  std::vector<Finished> out;
  for (const RequestId id : ids) out.push_back(testing::drain(engine, id));
  return out;
}

// Expects that requests end with `why`, and that the engine refuses others afterwards.
void expect_ended(Engine& engine, const std::string& why) {
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i) {
    const auto id = engine.submit(greedy_request(random_prompt(20 + 60 * i, i), 6));
    if (id.ok()) ids.push_back(*id);  // the first requests may have ended the engine already
  }
  ASSERT_FALSE(ids.empty());
  for (const RequestId id : ids) {
    const Finished ended = testing::drain(engine, id);
    EXPECT_EQ(ended.last.finish_reason, FinishReason::kAbort);
    EXPECT_THAT(ended.last.abort_text, HasSubstr(why));
  }
  EXPECT_FALSE(engine.submit(greedy_request(random_prompt(20, 9), 6)).ok());
}

TEST(RankGroup, AnswersLikeOneExecutor) {
  const CheckedEngine one(engine_over(std::make_unique<FakeExecutor>()));
  const std::vector<Finished> expected = answers(*one);
  const CheckedEngine group(engine_over(fakes([](int) { return Hooks{}; })));
  const std::vector<Finished> got = answers(*group);
  for (size_t i = 0; i < got.size(); ++i) testing::expect_same(got[i], expected[i]);
}

TEST(RankGroup, GivesEveryRankTheSameStepsInTheirOrder) {
  struct Seen {
    std::mutex mutex;
    std::map<int, std::vector<std::string>> steps;  // by rank
  };
  const auto seen = std::make_shared<Seen>();
  const CheckedEngine engine(engine_over(fakes([seen](int rank) {
    Hooks hooks;
    hooks.on_launch = [seen, rank](const StagedStep& step) {
      const std::lock_guard lock(seen->mutex);
      seen->steps[rank].push_back(fmt::format("{} {} {} {}", step.step, fmt::join(step.batch.token_ids, ","),
                                              fmt::join(step.batch.slots, ","),
                                              fmt::join(step.batch.page_table, ",")));
    };
    return hooks;
  })));
  answers(*engine);
  const std::lock_guard lock(seen->mutex);
  ASSERT_EQ(seen->steps.size(), size_t{kRanks});
  EXPECT_GE(seen->steps[0].size(), 12U) << "each request has twelve tokens";
  for (int rank = 1; rank < kRanks; ++rank) EXPECT_EQ(seen->steps[rank], seen->steps[0]);
}

// Every rank waits in its launch until all ranks have reached theirs.
TEST(RankGroup, RunsTheRanksOfAStepAtTheSameTime) {
  const auto all_here = std::make_shared<std::latch>(kRanks);
  const CheckedEngine engine(engine_over(fakes([all_here](int) {
    Hooks hooks;
    hooks.on_launch = [all_here](const StagedStep& step) {
      if (step.step == 1) all_here->arrive_and_wait();
    };
    return hooks;
  })));
  EXPECT_EQ(testing::run(*engine, greedy_request({1, 2, 3}, 5)).ids.size(), 5U);
}

TEST(RankGroup, WaitsForASlowRank) {
  const auto others_left = std::make_shared<std::atomic<int>>(0);
  const CheckedEngine engine(engine_over(fakes([others_left](int rank) {
    Hooks hooks;
    hooks.on_wait = [others_left, rank](const StagedStep& step) {
      if (step.step != 2) return std::string();
      if (rank != 1) {
        others_left->fetch_add(1);
        others_left->notify_all();
        return std::string();
      }
      for (int left = others_left->load(); left < kRanks - 1; left = others_left->load())
        others_left->wait(left);
      return std::string();
    };
    return hooks;
  })));
  EXPECT_EQ(testing::run(*engine, greedy_request({1, 2, 3}, 5)).ids.size(), 5U);
}

TEST(RankGroup, ARankThatThrowsInALaunchFailsTheStepOnAll) {
  for (const bool out_of_memory : {false, true}) {
    const CheckedEngine engine(engine_over(fakes([out_of_memory](int rank) {
      Hooks hooks;
      hooks.on_launch = [=](const StagedStep& step) {
        if (rank != 1 || step.step < 3) return;
        if (out_of_memory) throw std::bad_alloc();
        throw Error("a fault of the test");
      };
      return hooks;
    })));
    expect_ended(*engine, out_of_memory ? "rank 1: std::bad_alloc" : "rank 1: a fault of the test");
  }
}

TEST(RankGroup, ARankThatThrowsInAWaitFailsTheStepOnAll) {
  const CheckedEngine engine(engine_over(fakes([](int rank) {
    Hooks hooks;
    hooks.on_wait = [rank](const StagedStep& step) -> std::string {
      if (rank == 2 && step.step >= 2) throw Error("a fault of the test");
      return "";
    };
    return hooks;
  })));
  expect_ended(*engine, "rank 2: a fault of the test");
}

TEST(RankGroup, AnErrorOfOneRankAloneEndsTheEngine) {
  const CheckedEngine engine(engine_over(fakes([](int rank) {
    Hooks hooks;
    hooks.on_wait = [rank](const StagedStep& step) {
      return rank == 1 && step.step >= 2 ? std::string("an error of the test") : std::string();
    };
    return hooks;
  })));
  expect_ended(*engine, "rank 1: an error of the test");
}

TEST(RankGroup, AnErrorOfAllRanksEndsTheRequestsOfItsStepAlone) {
  const auto fails = std::make_shared<std::atomic<int>>(0);
  const CheckedEngine engine(engine_over(fakes([fails](int) {
    Hooks hooks;
    hooks.on_wait = [fails](const StagedStep&) {
      return fails->load() > 0 && fails->fetch_sub(1) > 0 ? std::string("an error of the test")
                                                          : std::string();
    };
    return hooks;
  })));
  const Finished before = testing::run(*engine, greedy_request(random_prompt(20, 3), 6));
  fails->store(kRanks);
  const Finished hit = testing::run(*engine, greedy_request(random_prompt(33, 4), 6));
  EXPECT_EQ(hit.last.finish_reason, FinishReason::kAbort);
  EXPECT_THAT(hit.last.abort_text, HasSubstr("rank 0: an error of the test"));
  EXPECT_EQ(testing::run(*engine, greedy_request(random_prompt(20, 3), 6)).ids, before.ids);
}

// The lost rank goes on with its step once the engine has ended, and everything that it uses still exists.
TEST(RankGroup, ALostRankEndsTheEngineWithOneErrorForEachRequest) {
  const auto hangs = std::make_shared<std::atomic<bool>>(false);
  const auto released = std::make_shared<std::latch>(1);
  const auto left = std::make_shared<std::latch>(1);
  {
    const std::unique_ptr<Engine> engine = engine_over(fakes([=](int rank) {
                                                         Hooks hooks;
                                                         hooks.on_launch = [=](const StagedStep& step) {
                                                           if (rank != 2 || !hangs->load()) return;
                                                           released->wait();
                                                           EXPECT_FALSE(step.batch.token_ids.empty());
                                                           left->count_down();
                                                         };
                                                         return hooks;
                                                       }),
                                                       std::chrono::seconds(3));
    EXPECT_EQ(testing::run(*engine, greedy_request(random_prompt(20, 3), 3)).ids.size(), 3U);
    hangs->store(true);
    expect_ended(*engine, "rank 2 is lost");
  }
  released->count_down();
  left->wait();
}

// A runner's caller may try again with another batch, which a lost rank must not read.
TEST(RankGroup, ALostRankKeepsItsBatch) {
  struct Calls {
    std::latch released{1};
    std::latch returned{1};
    std::vector<int32_t> seen;  // by the lost rank, after it was released
    std::vector<float> hidden;
  };
  class Runner final : public ModelRunner {
   public:
    Runner(int rank, std::shared_ptr<Calls> calls) : rank_(rank), calls_(std::move(calls)) {}
    std::span<const float> forward(const ForwardBatch&) override { return {}; }
    ForwardRows forward_nextn(const ForwardBatch& batch, std::span<const float> hidden) override {
      if (rank_ != 1) return {};
      calls_->released.wait();
      calls_->seen = batch.token_ids;
      calls_->hidden.assign(hidden.begin(), hidden.end());
      calls_->returned.count_down();
      return {};
    }

   private:
    const int rank_;
    const std::shared_ptr<Calls> calls_;
  };
  const auto calls = std::make_shared<Calls>();
  RankGroupRunner group(kRanks, std::chrono::seconds(3), [calls](int rank, Communicator&) {
    return std::unique_ptr<ModelRunner>(std::make_unique<Runner>(rank, calls));
  });
  const auto forward = [&](int32_t token, float value) {
    ForwardBatch batch;
    batch.token_ids = {token};
    group.forward_nextn(batch, std::vector<float>{value});
  };
  EXPECT_THROW(forward(4, 0.25F), RankLost);
  EXPECT_THROW(forward(5, 0.5F), RankLost);
  calls->released.count_down();
  calls->returned.wait();
  EXPECT_EQ(calls->seen, std::vector<int32_t>{4});
  EXPECT_EQ(calls->hidden, std::vector<float>{0.25F});
}

TEST(RankGroup, ARankThatDiesAtTheStartFailsItWithItsOwnError) {
  class NoMemory : public Error {
   public:
    using Error::Error;
  };
  // The other ranks wait for rank 1, as they do while graphs are captured.
  const auto make = [](int rank, Communicator& host) -> std::unique_ptr<StepExecutor> {
    if (rank == 1) throw NoMemory("no memory for the cache");
    host.barrier();
    return std::make_unique<FakeExecutor>();
  };
  try {
    RankGroupExecutor group(kRanks, kPatient, make);
    FAIL() << "a group with a dead rank was made";
  } catch (const NoMemory& error) {
    EXPECT_STREQ(error.what(), "no memory for the cache");
  }
}

StepOutput output_of(std::vector<int32_t> tokens, double run_s = 0.0) {
  StepOutput output;
  output.run_s = run_s;
  for (const int32_t token : tokens)
    output.samples.push_back({.slot = static_cast<int32_t>(output.samples.size()), .token = token});
  return output;
}

TEST(JoinOutputs, TakesRankZeroAndTheTimeOfTheSlowest) {
  const StepOutput joined =
      join_outputs({output_of({4, 5}, 1.0), output_of({4, 5}, 3.0), output_of({4, 5}, 2.0)});
  EXPECT_EQ(joined.error, "");
  EXPECT_EQ(joined.run_s, 3.0);
  ASSERT_EQ(joined.samples.size(), 2U);
  EXPECT_EQ(joined.samples[1].token, 5);
}

TEST(JoinOutputs, RanksThatSampleDifferentTokensAreAFatalError) {
  const StepOutput joined = join_outputs({output_of({4, 5}), output_of({4, 5}), output_of({4, 6})});
  EXPECT_EQ(joined.error, "rank 2 has sampled token 6 in slot 1, rank 0 token 5: their states differ");
  EXPECT_TRUE(joined.fatal);
  EXPECT_TRUE(join_outputs({output_of({4}), output_of({4, 5})}).fatal);
}

TEST(JoinOutputs, RanksThatAcceptDifferentDraftsAreAFatalError) {
  const auto output = [](int32_t num_drafts, const std::vector<int32_t>& accepted) {
    StepOutput one = output_of({4});
    one.samples[0].num_drafts = num_drafts;
    for (const int32_t token : accepted) one.samples[0].further.push_back({.token = token});
    return one;
  };
  const StepOutput expected = output(3, {7, 8});
  EXPECT_EQ(join_outputs({expected, expected}).error, "");
  for (const StepOutput& other : {output(2, {7, 8}), output(3, {7}), output(3, {7, 9}), output(3, {})}) {
    const StepOutput joined = join_outputs({expected, expected, other});
    EXPECT_THAT(joined.error, HasSubstr("rank 2 verified")) << other.samples[0].further.size();
    EXPECT_TRUE(joined.fatal);
  }
}

TEST(RankGroup, SpeculatesAsItsRanksDo) {
  class Speculating final : public StepExecutor {
   public:
    void launch(StagedStep) override {}
    void set_masks(int64_t, std::vector<uint32_t>) override {}
    StepOutput wait() override { return {}; }
    bool speculates() const override { return true; }
    DeviceRates rates() const override { return {.products_per_byte = 7.0}; }
  };
  const RankGroupExecutor group(kRanks, kPatient, [](int, Communicator&) -> std::unique_ptr<StepExecutor> {
    return std::make_unique<Speculating>();
  });
  EXPECT_TRUE(group.speculates());
  EXPECT_EQ(group.rates().products_per_byte, 7.0);
  EXPECT_FALSE(RankGroupExecutor(kRanks, kPatient, fakes([](int) { return Hooks{}; })).speculates());
}

TEST(JoinOutputs, AnErrorThatNamesItsRankKeepsThatName) {
  StepOutput failed;
  failed.error = "rank 2: the GPU has failed";
  const StepOutput joined = join_outputs({failed, failed, failed});
  EXPECT_EQ(joined.error, "rank 2: the GPU has failed");
  EXPECT_FALSE(joined.fatal) << "all ranks failed alike";
  EXPECT_TRUE(join_outputs({output_of({}), failed}).fatal);
}

}  // namespace
}  // namespace hadal
