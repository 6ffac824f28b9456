// Tests that a replayed record gives the same plans. Whatever a file contains, replaying it ends in a result
// or an error.
#include "scheduler/plan_record.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "tests/scheduler/simulator.h"

namespace hadal::testing {
namespace {

std::string temporary_path(const std::string& name) {
  return ::testing::TempDir() + "hadal_" + name;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

Result<PlanReplay> replay(const std::string& text) {
  std::istringstream stream(text);
  return replay_plans(stream);
}

// Records everything that a scheduler can do: retractions, copies, aborts, a failed step and a flush.
std::string record_of_a_busy_hour(bool overlapped) {
  SimulatorOptions options;
  options.scheduler.num_pages = 12;
  options.scheduler.max_running_requests = 6;
  options.scheduler.chunked_prefill_size = 90;
  options.scheduler.conservativeness = 0.3;
  options.scheduler.policy = SchedulePolicy::kLpm;
  options.scheduler.prompt_costs = {.positions_per_row = 30,
                                    .rows_per_score = 2,
                                    .rows_per_1024_expanded = 500,
                                    .absorbed_positions_per_row = 10};
  options.scheduler.max_scored_tokens = 30;
  options.overlapped = overlapped;
  options.num_clients = 3;
  options.max_cost = 40;
  const std::string path = temporary_path(overlapped ? "plans_overlapped.jsonl" : "plans.jsonl");
  auto recorder = PlanRecorder::open(path);
  Simulator simulator(options);
  simulator.scheduler().record_to(recorder->get());
  std::mt19937_64 rng(7);
  std::vector<int32_t> document(150);
  for (int32_t& token : document) token = static_cast<int32_t>(rng() % 500);
  for (int32_t i = 0; i < 40; ++i) {
    std::vector<int32_t> prompt(document.begin(), document.begin() + 1 + rng() % 150);
    prompt.push_back(1000 + i);
    const RequestId id = simulator.add(std::move(prompt), rng() % 120, i % 4 == 0 ? 0 : -1, i % 3);
    for (int round = 0; round < 12; ++round) simulator.round();
    if (i % 7 == 0) simulator.abort(id);
    if (i == 20 && simulator.num_in_flight() < 2) simulator.plan(/*fails=*/true);
    if (i == 30) simulator.scheduler().flush_cache();
  }
  simulator.run_to_the_end();
  EXPECT_GT(simulator.scheduler().stats().total_retractions, 0);
  EXPECT_TRUE((*recorder)->is_recording());
  simulator.scheduler().record_to(nullptr);
  recorder->reset();
  std::string text = read_file(path);
  std::remove(path.c_str());
  return text;
}

TEST(PlanRecord, AReplayMakesTheSamePlans) {
  for (const bool overlapped : {false, true}) {
    const std::string record = record_of_a_busy_hour(overlapped);
    const auto result = replay(record);
    ASSERT_TRUE(result.ok()) << result.status().message;
    EXPECT_EQ(result->difference, "");
    EXPECT_EQ(result->num_calls, std::count(record.begin(), record.end(), '\n'));
    EXPECT_GT(result->num_plans, 300);
    for (const char* call : {"add", "abort", "plan", "complete", "fail", "flush_cache"}) {
      EXPECT_NE(record.find(fmt::format("{{\"call\":\"{}\"", call)), std::string::npos) << call;
    }
  }
}

TEST(PlanRecord, KeepsSalts) {
  const std::string path = temporary_path("plans_salted.jsonl");
  auto recorder = PlanRecorder::open(path);
  Scheduler scheduler({.num_pages = 8});
  scheduler.record_to(recorder->get());
  for (RequestId id = 1; id <= 3; ++id) {
    scheduler.add({.id = id,
                   .prompt = std::vector<int32_t>(100, 5),
                   .max_cached_tokens = 99,
                   .scores_prompt = id == 3,
                   .salt = {.high = id == 1 ? 0U : 255U, .low = id == 1 ? 0U : ~uint64_t{0}}});
    const BatchPlan plan = scheduler.plan();
    EXPECT_EQ(plan.num_cached_tokens, id == 3 ? 99 : 0);
    scheduler.complete(plan, {});
  }
  scheduler.record_to(nullptr);
  recorder->reset();
  const std::string record = read_file(path);
  EXPECT_NE(record.find("\"salt\":\"00000000000000ffffffffffffffffff\""), std::string::npos) << record;
  const auto result = replay(record);
  ASSERT_TRUE(result.ok()) << result.status().message;
  EXPECT_EQ(result->difference, "");
}

TEST(PlanRecord, TheFirstPlanThatDiffersIsReported) {
  std::string record = record_of_a_busy_hour(true);
  const std::string before = "\"max_running_requests\":6";
  record.replace(record.find(before), before.size(), "\"max_running_requests\":1");
  const auto result = replay(record);
  ASSERT_TRUE(result.ok()) << result.status().message;
  EXPECT_EQ(result->difference.rfind("line ", 0), 0U);
  EXPECT_NE(result->difference.find("recorded {\"step\":"), std::string::npos) << result->difference;
}

TEST(PlanRecord, AMalformedRecordIsAnErrorThatNamesTheLine) {
  const std::string options =
      R"({"call":"options","num_pages":4,"max_running_requests":2,"chunked_prefill_size":64,)"
      R"("max_prefill_tokens":100,"policy":"fcfs","low_priority_values_first":false,"conservativeness":1,)"
      R"("eviction":"lru","enable_radix_cache":true,"cache_generated_tokens":true})"
      "\n";
  const std::string add =
      R"({"call":"add","id":1,"max_new_tokens":3,"max_cached_tokens":0,"priority":0,"prompt":[1,2]})"
      "\n";
  ASSERT_TRUE(replay(options + add).ok());
  const std::pair<std::string, std::string> cases[] = {
      {"{\n", "line 1 of the record is not JSON: "},
      {"[]\n", "line 1 of the record is not a JSON object"},
      {options + "{\"call\":", "line 2 of the record is cut off"},
      {add, "line 1 of the record: \"call\" is \"add\"; the first call must be \"options\""},
      {options + "{\"call\":\"ad\"}\n", "line 2 of the record: \"call\" is \"ad\"; allowed are"},
      {options + add + add, "line 3 of the record: request 1 is added twice"},
      {options +
           R"({"call":"add","id":1,"max_new_tokens":900,"max_cached_tokens":0,"priority":0,"prompt":[1]})"
           "\n",
       "line 2 of the record: \"max_new_tokens\" is 900; allowed is an integer in [0, 255]"},
      {options + R"({"call":"add","id":1,"prompt":[]})"
                 "\n",
       "line 2 of the record: \"prompt\" has 0 tokens; allowed is [1, 256]"},
      {options + R"({"call":"add","id":-1,"prompt":[1]})"
                 "\n",
       "line 2 of the record: \"id\" is -1"},
      {options + R"({"call":"add","id":1,"prompt":[1.5]})"
                 "\n",
       "line 2 of the record: \"prompt\" is 1.5E0"},
      {options + R"({"call":"complete","step":1,"outcomes":[]})"
                 "\n",
       "line 2 of the record: \"step\" is 1; the oldest step in flight is none"},
      {options + R"({"call":"add","id":1,"max_new_tokens":3,"max_cached_tokens":0,"priority":0,"salt":"0g",)"
                 R"("prompt":[1]})"
                 "\n",
       "line 2 of the record: \"salt\" is \"0g\"; must be 32 hexadecimal digits"},
      {options + R"({"call":"fail"})"
                 "\n",
       "line 2 of the record: \"step\" is missing"},
  };
  for (const auto& [text, message] : cases) {
    const auto result = replay(text);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_EQ(result.status().message.rfind(message, 0), 0U) << result.status().message;
  }
  for (const std::string field :
       {"num_pages", "conservativeness", "policy", "eviction", "enable_radix_cache"}) {
    std::string broken = options;
    broken.insert(broken.find("\"" + field + "\":") + field.size() + 3, "[],\"x\":");
    const auto result = replay(broken);
    ASSERT_FALSE(result.ok()) << broken;
    EXPECT_NE(result.status().message.find(field), std::string::npos) << result.status().message;
  }
}

TEST(PlanRecord, DamagedRecordsNeverBreakAnInvariant) {
  std::string whole = record_of_a_busy_hour(true);
  const std::string record = whole.substr(0, whole.find('\n', 60'000) + 1);
  std::mt19937_64 rng(11);
  int num_errors = 0, num_differences = 0;
  for (int i = 0; i < 300; ++i) {
    std::string damaged = record;
    for (int j = 0; j < 3; ++j) {
      const size_t at = rng() % damaged.size();
      switch (rng() % 3) {
        case 0:
          damaged[at] = "0123456789,[]{}:\"-\n"[rng() % 19];
          break;
        case 1:
          damaged.erase(at, 1 + rng() % 8);
          break;
        default: {                                           // a line is dropped or doubled
          const size_t begin = damaged.rfind('\n', at) + 1;  // npos + 1 is 0
          const size_t end = damaged.find('\n', at);
          if (end == std::string::npos || end < begin) break;
          const std::string line = damaged.substr(begin, end + 1 - begin);
          rng() % 2 == 0 ? damaged.erase(begin, line.size()) : damaged.insert(begin, line);
        }
      }
    }
    const auto result = replay(damaged);
    num_errors += result.ok() ? 0 : 1;
    num_differences += result.ok() && !result->difference.empty() ? 1 : 0;
  }
  EXPECT_GT(num_errors, 50);
  EXPECT_GT(num_differences, 20);
}

TEST(PlanRecord, AFullDiskEndsTheRecordNotTheScheduler) {
  auto recorder = PlanRecorder::open("/dev/full");
  ASSERT_TRUE(recorder.ok()) << recorder.status().message;
  SimulatorOptions options;
  options.scheduler.num_pages = 64;
  Simulator simulator(options);
  simulator.scheduler().record_to(recorder->get());
  for (int32_t i = 0; i < 20; ++i) simulator.add(std::vector<int32_t>(500, i), 100);
  simulator.run_to_the_end();
  EXPECT_FALSE((*recorder)->is_recording());
}

TEST(PlanRecord, AFileThatCannotBeWrittenIsAnError) {
  const auto recorder = PlanRecorder::open("/nonexistent/plans.jsonl");
  ASSERT_FALSE(recorder.ok());
  EXPECT_EQ(recorder.status().message,
            "record of plans: cannot write /nonexistent/plans.jsonl: No such file or directory");
}

}  // namespace
}  // namespace hadal::testing
