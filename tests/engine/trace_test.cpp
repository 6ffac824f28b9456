#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include <boost/json.hpp>

#include "engine/engine.h"
#include "engine/loop/step_trace.h"
#include "tests/engine/fake_executor.h"
#include "tests/engine/test_requests.h"

namespace hadal {
namespace {

using testing::CheckedEngine;
using testing::FakeExecutor;
using testing::greedy_request;
using ::testing::IsSupersetOf;
using testing::run;

CheckedEngine make_engine(bool overlap) {
  EngineOptions options{.max_total_tokens = 4096, .overlap_schedule = overlap, .context_length = 4096};
  options.decode_log_interval = 0;
  return CheckedEngine(
      Engine::create(std::make_unique<FakeExecutor>(), testing::fake_config(), options).value());
}

struct Trace {
  std::map<std::string, int> spans;         // complete events by name
  std::map<std::string, int> begins, ends;  // request events by name
  std::set<int64_t> steps;
};

Trace parse(const std::string& text) {
  Trace trace;
  const boost::json::value document = boost::json::parse(text);
  for (const auto& event : document.at("traceEvents").as_array()) {
    const std::string phase = event.at("ph").as_string().c_str();
    const std::string name = event.at("name").as_string().c_str();
    if (phase == "X") {
      ++trace.spans[name];
      EXPECT_GE(event.at("dur").to_number<double>(), 0.0);
      trace.steps.insert(event.at("args").at("step").to_number<int64_t>());
    }
    if (phase == "b") ++trace.begins[name];
    if (phase == "e") ++trace.ends[name];
  }
  return trace;
}

TEST(EngineTrace, ContainsEveryPhaseOfEveryStepAndTheLifeOfEveryRequest) {
  for (const bool overlap : {false, true}) {
    const auto engine = make_engine(overlap);
    EXPECT_EQ(engine->stop_profile().status().code, StatusCode::kInvalidArgument);
    ASSERT_TRUE(engine->start_profile(0).ok());
    EXPECT_EQ(engine->start_profile(0).status().code, StatusCode::kInvalidArgument);
    run(*engine, greedy_request({1, 2, 3}, 10));
    run(*engine, greedy_request({1, 2, 3}, 10));
    engine->pause();
    ASSERT_TRUE(engine->submit(greedy_request({1}, 4)).ok());
    const Trace trace = parse(engine->stop_profile().value());
    for (const char* name : {"plan", "stage", "run", "collect"}) {
      EXPECT_EQ(trace.spans.at(name), static_cast<int>(trace.steps.size())) << name;
    }
    EXPECT_GE(trace.steps.size(), 20U);
    EXPECT_EQ(trace.begins, trace.ends);
    EXPECT_EQ(trace.begins.at("request"), 3);
    EXPECT_EQ(trace.begins.at("queue"), 3);
    EXPECT_EQ(trace.begins.at("prefill"), 2);
    EXPECT_EQ(trace.begins.at("decode"), 2);
  }
}

TEST(EngineTrace, EndsByItselfAfterTheRequestedSteps) {
  const auto engine = make_engine(false);
  ASSERT_TRUE(engine->start_profile(5).ok());
  run(*engine, greedy_request({1, 2, 3}, 30));
  EXPECT_EQ(parse(engine->stop_profile().value()).spans.at("run"), 5);
}

TEST(StepTrace, IsBoundedAndCountsWhatItDropped) {
  StepTrace trace(10);
  trace.start(0);
  Sequence sequence;
  const auto now = StepTrace::Clock::now();
  for (int64_t i = 0; i < 25; ++i) {
    trace.span("run", StepTrace::Track::kWorker, i, now, now);
    trace.request(sequence, now);  // two spans: request and queue
  }
  const StepTrace taken = trace.take();
  EXPECT_FALSE(trace.has_trace());
  const std::string text = taken.render();
  EXPECT_EQ(boost::json::parse(text).at("otherData").at("dropped_spans").to_number<int>(), 15 + 40);
  EXPECT_EQ(parse(text).spans.at("run"), 10);
  EXPECT_EQ(parse(text).begins.at("request"), 5);
}

}  // namespace
}  // namespace hadal
