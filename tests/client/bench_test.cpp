// Tests the parts of the load generator that need no server: statistics, datasets, bodies, answers and
// reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <set>

#include "client/bench_backend.h"
#include "client/bench_dataset.h"
#include "client/bench_load.h"
#include "client/bench_report.h"
#include "client/bench_stats.h"
#include "client/bench_text.h"
#include "tests/text/test_data.h"

namespace hadal::client {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Statistics, QuantilesEqualThoseOfANaiveImplementation) {
  std::mt19937 random(7);
  for (int count = 1; count < 60; ++count) {
    std::vector<double> values;
    for (int i = 0; i < count; ++i) values.push_back(static_cast<double>(random() % 1000) / 7.0);
    const Spread spread = spread_of(values);
    std::sort(values.begin(), values.end());
    // Interpolates at the place q · (n − 1), which a loop counts from the smallest value.
    const auto naive = [&](double q) {
      double place = q * (count - 1);
      int below = 0;
      while (place >= 1.0) {
        place -= 1.0;
        ++below;
      }
      return below + 1 < count ? (1 - place) * values[below] + place * values[below + 1] : values[below];
    };
    EXPECT_NEAR(spread.median, naive(0.5), 1e-9) << count;
    EXPECT_NEAR(spread.p90, naive(0.9), 1e-9) << count;
    EXPECT_NEAR(spread.p95, naive(0.95), 1e-9) << count;
    EXPECT_NEAR(spread.p99, naive(0.99), 1e-9) << count;
    EXPECT_EQ(spread.max, values.back());
    const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
    double squares = 0.0;
    for (const double value : values) squares += value * value;
    EXPECT_NEAR(spread.mean, mean, 1e-9);
    EXPECT_NEAR(spread.std, std::sqrt(std::max(0.0, squares / count - mean * mean)), 1e-6);
  }
  EXPECT_EQ(spread_of({}).p99, 0.0);
}

std::vector<RequestOutcome> three_outcomes() {
  RequestOutcome a{.ok = true, .error = "", .prompt_tokens = 10, .output_tokens = 3, .start_s = 0.0};
  a.ttft_s = 0.1;
  a.latency_s = 0.5;
  a.itl_s = {0.2F, 0.2F};
  RequestOutcome b = a;
  b.start_s = 0.4;
  b.latency_s = 1.1;
  b.itl_s = {0.5F, 0.5F};
  RequestOutcome failed{.ok = false, .error = "status 503", .prompt_tokens = 99, .output_tokens = 1};
  return {a, b, failed};
}

TEST(Statistics, TheSummaryCountsSuccessfulRequestsAlone) {
  const LoadMetrics metrics = summarise(three_outcomes(), 2.0);
  EXPECT_EQ(metrics.completed, 2);
  EXPECT_EQ(metrics.total_input, 20);
  EXPECT_EQ(metrics.total_output, 6);
  EXPECT_DOUBLE_EQ(metrics.request_throughput, 1.0);
  EXPECT_DOUBLE_EQ(metrics.output_throughput, 3.0);
  EXPECT_DOUBLE_EQ(metrics.total_throughput, 13.0);
  EXPECT_DOUBLE_EQ(metrics.concurrency, 0.8);
  EXPECT_EQ(metrics.peak_concurrency, 2);
  EXPECT_EQ(metrics.peak_output_throughput, 4.0);  // at 0.1, 0.3, 0.5 and 0.5 s; then 1.0 and 1.5 s
  EXPECT_NEAR(metrics.tpot_ms.mean, 350.0, 1e-6);
  EXPECT_NEAR(metrics.itl_ms.mean, 350.0, 1e-3);
  EXPECT_NEAR(metrics.ttft_ms.p99, 100.0, 1e-9);
  EXPECT_EQ(summarise({}, 0.0).request_throughput, 0.0);
}

TEST(Arrivals, ArePoissonAndRepeatable) {
  const std::vector<double> times = arrival_times(20000, 50.0, 3);
  EXPECT_EQ(times, arrival_times(20000, 50.0, 3));
  EXPECT_NE(times, arrival_times(20000, 50.0, 4));
  std::vector<double> gaps;
  for (size_t i = 1; i < times.size(); ++i) gaps.push_back(times[i] - times[i - 1]);
  const Spread spread = spread_of(gaps);
  EXPECT_NEAR(spread.mean, 0.02, 0.001);
  EXPECT_NEAR(spread.std, 0.02, 0.001);  // as of an exponential distribution
  EXPECT_NEAR(spread.median, 0.02 * std::log(2.0), 0.001);
}

DatasetOptions small(const std::string& name) {
  DatasetOptions options;
  options.name = name;
  options.num_prompts = 20;
  options.random_input_len = 40;
  options.random_output_len = 12;
  options.random_range_ratio = 0.5;
  return options;
}

TEST(Datasets, RandomTextHasTheLengthAskedForAndRepeatsBySeed) {
  const auto tokenizer = load_test_tokenizer("v3");
  DatasetOptions options = small("random");
  const auto first = make_dataset(options, tokenizer.get(), std::nullopt, 0);
  const auto again = make_dataset(options, tokenizer.get(), std::nullopt, 0);
  options.seed = 2;
  const auto other = make_dataset(options, tokenizer.get(), std::nullopt, 0);
  ASSERT_TRUE(first.ok() && again.ok() && other.ok());
  ASSERT_EQ(first->size(), 20U);
  std::set<int64_t> lengths;
  for (size_t i = 0; i < first->size(); ++i) {
    const LoadRequest& request = (*first)[i];
    EXPECT_EQ(request.prompt, (*again)[i].prompt);
    EXPECT_NE(request.prompt, (*other)[i].prompt);
    EXPECT_EQ(static_cast<int64_t>(tokenizer->encode(request.prompt, true).size()), request.prompt_tokens);
    EXPECT_GE(request.prompt_tokens, 20);
    EXPECT_LE(request.prompt_tokens, 40);
    EXPECT_GE(request.output_tokens, 6);
    EXPECT_LE(request.output_tokens, 12);
    lengths.insert(request.prompt_tokens);
  }
  EXPECT_GT(lengths.size(), 5U);
  options.random_range_ratio = 1.0;
  const auto fixed = make_dataset(options, tokenizer.get(), std::nullopt, 0);
  for (const LoadRequest& request : *fixed) {
    EXPECT_EQ(request.prompt_tokens, 40);
    EXPECT_EQ(request.output_tokens, 12);
  }
}

TEST(Datasets, RandomIdsNeedNoTokenizerAndAvoidSpecialOnes) {
  const auto bare = make_dataset(small("random-ids"), nullptr, std::nullopt, 500);
  ASSERT_TRUE(bare.ok());
  for (const LoadRequest& request : *bare) {
    EXPECT_EQ(static_cast<int64_t>(request.ids.size()), request.prompt_tokens);
    for (const int32_t id : request.ids) EXPECT_TRUE(id >= 0 && id < 500) << id;
  }
  const auto tokenizer = load_test_tokenizer("v3");
  const auto with = make_dataset(small("random-ids"), tokenizer.get(), std::nullopt, 0);
  for (const LoadRequest& request : *with) {
    for (const int32_t id : request.ids) EXPECT_FALSE(tokenizer->is_special(id)) << id;
  }
}

TEST(Datasets, GroupsShareTheirPrefix) {
  const auto tokenizer = load_test_tokenizer("v3");
  DatasetOptions options;
  options.name = "generated-shared-prefix";
  options.gsp_num_groups = 3;
  options.gsp_prompts_per_group = 4;
  options.gsp_system_prompt_len = 50;
  options.gsp_question_len = 10;
  options.gsp_output_len = 5;
  auto requests = make_dataset(options, tokenizer.get(), std::nullopt, 0);
  ASSERT_TRUE(requests.ok());
  ASSERT_EQ(requests->size(), 12U);
  std::map<std::string, int> groups;
  std::set<std::string> prompts;
  for (const LoadRequest& request : *requests) {
    ++groups[request.prompt.substr(0, request.prompt.find("\n\n"))];
    prompts.insert(request.prompt);
    EXPECT_NEAR(static_cast<double>(request.prompt_tokens), 60.0, 4.0);
  }
  EXPECT_EQ(groups.size(), 3U);
  for (const auto& [prefix, count] : groups) EXPECT_EQ(count, 4);
  EXPECT_EQ(prompts.size(), 12U);
}

class DatasetFile : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  std::string write(const std::string& text) {
    std::ofstream(path_) << text;
    return path_;
  }
  std::string path_ = (std::filesystem::temp_directory_path() /
                       fmt::format("hadal_dataset_{}.json", static_cast<int>(::getpid())))
                          .string();
};

TEST_F(DatasetFile, ConversationsComeFromListsAndLines) {
  const auto tokenizer = load_test_tokenizer("v3");
  const std::string one =
      R"({"conversations":[{"from":"human","value":"What is the time?"},{"value":"Half past nine, I think."}]})";
  const std::string short_one = R"({"conversations":[{"value":"Only one"}]})";
  const std::string other =
      R"({"messages":[{"role":"user","content":"Name a river."},{"content":"The Danube is one."}]})";
  DatasetOptions options = small("sharegpt");
  options.prompt_suffix = " Please.";
  for (const std::string& text :
       {"[" + one + "," + short_one + "," + other + "]", one + "\n\n" + short_one + "\n" + other + "\n"}) {
    options.path = write(text);
    const auto requests = make_dataset(options, tokenizer.get(), std::nullopt, 0);
    ASSERT_TRUE(requests.ok()) << requests.status().message;
    std::set<std::string> prompts;
    for (const LoadRequest& request : *requests) {
      prompts.insert(request.prompt);
      EXPECT_GT(request.output_tokens, 2);
    }
    EXPECT_THAT(prompts, ElementsAre("Name a river. Please.", "What is the time? Please."));
  }
  options.sharegpt_context_len = 3;
  EXPECT_THAT(make_dataset(options, tokenizer.get(), std::nullopt, 0).status().message, HasSubstr("limits"));
  options.path = write("[{]");
  EXPECT_THAT(make_dataset(options, tokenizer.get(), std::nullopt, 0).status().message,
              HasSubstr("not a JSON"));
}

TEST(Bodies, AskEveryApiForTheSame) {
  const LoadRequest request{.prompt = "Hi \"you\"", .ids = {}, .prompt_tokens = 3, .output_tokens = 9};
  BodyOptions options;
  options.model = "m";
  options.extra = R"({"sampling_params":{"temperature":0.5},"rid":"r"})";
  const json native = json::parse(make_body(request, options));
  EXPECT_EQ(native, json::parse(R"({"text":"Hi \"you\"","stream":true,"rid":"r",
      "sampling_params":{"temperature":0.5,"max_new_tokens":9,"ignore_eos":true}})"));
  options.extra.clear();
  options.api = ServerApi::kCompletions;
  const json completion = json::parse(make_body({.prompt = "", .ids = {4, 5}, .output_tokens = 9}, options));
  EXPECT_EQ(completion["prompt"], json({4, 5}));
  EXPECT_EQ(completion["max_tokens"], 9);
  EXPECT_EQ(completion["stream_options"]["include_usage"], true);
  options.api = ServerApi::kChat;
  options.stream = false;
  const json chat = json::parse(make_body(request, options));
  EXPECT_EQ(chat["messages"][0]["content"], "Hi \"you\"");
  EXPECT_FALSE(chat.contains("stream_options"));
  EXPECT_FALSE(check_extra("[1]", "--extra").ok());
  EXPECT_FALSE(check_extra("{", "--extra").ok());
}

TEST(Answers, AreReadFromEveryApi) {
  AnswerReader native(ServerApi::kGenerate);
  EXPECT_EQ(native.take_event(R"({"text":"a","meta_info":{"completion_tokens":1}})"), 1);
  EXPECT_EQ(native.take_event(R"({"text":"abc","meta_info":{"completion_tokens":4,"cached_tokens":64}})"), 3);
  EXPECT_EQ(native.take_event("[DONE]"), 0);
  EXPECT_EQ(native.text(), "abc");
  EXPECT_EQ(native.output_tokens(), 4);
  EXPECT_EQ(native.cached_tokens(), 64);
  EXPECT_TRUE(native.saw_done());

  AnswerReader chat(ServerApi::kChat);
  EXPECT_EQ(chat.take_event(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})"), 0);
  EXPECT_EQ(chat.take_event(R"({"choices":[{"delta":{"reasoning_content":"hm ","content":null}}]})"), 1);
  EXPECT_EQ(chat.take_event(R"({"choices":[{"delta":{"content":"yes"}}]})"), 1);
  EXPECT_EQ(chat.output_tokens(), 2);
  EXPECT_EQ(chat.take_event(R"({"choices":[],"usage":{"completion_tokens":7,"prompt_tokens":3}})"), 0);
  EXPECT_EQ(chat.text(), "hm yes");
  EXPECT_EQ(chat.output_tokens(), 7);
  EXPECT_EQ(chat.prompt_tokens(), 3);

  AnswerReader whole(ServerApi::kCompletions);
  whole.take_body(R"({"choices":[{"text":"yes"}],"usage":{"completion_tokens":2}})");
  EXPECT_EQ(whole.text(), "yes");
  EXPECT_EQ(whole.output_tokens(), 2);

  AnswerReader failed(ServerApi::kGenerate);
  failed.take_event(R"({"error":{"message":"too long"}})");
  EXPECT_EQ(failed.error(), "too long");
  AnswerReader aborted(ServerApi::kGenerate);
  aborted.take_event(R"({"text":"","meta_info":{"finish_reason":{"type":"abort","message":"gone"}}})");
  EXPECT_EQ(aborted.error(), "aborted: gone");
  AnswerReader broken(ServerApi::kGenerate);
  broken.take_event("<html>");
  EXPECT_THAT(broken.error(), HasSubstr("not a JSON object"));
}

TEST(Reports, HaveTheLinesAndKeysOfSglang) {
  LoadSetup setup{.backend = "sglang", .tag = "", .dataset = small("random")};
  setup.max_concurrency = 16;
  const LoadMetrics metrics = summarise(three_outcomes(), 2.0);
  const std::string report = serving_report(setup, metrics, {.output_retokenized = 6, .accept_length = {}});
  EXPECT_THAT(report, HasSubstr("============ Serving Benchmark Result ============\n"));
  for (const char* line : {"Backend:                                 sglang    \n",
                           "Traffic request rate:                    inf       \n",
                           "Max request concurrency:                 16        \n",
                           "Successful requests:                     2         \n",
                           "Benchmark duration (s):                  2.00      \n",
                           "Total input tokens:                      20        \n",
                           "Total generated tokens:                  6         \n",
                           "Output token throughput (tok/s):         3.00      \n",
                           "Concurrency:                             0.80      \n",
                           "Mean TTFT (ms):                          100.00    \n",
                           "Median E2E Latency (ms):                 800.00    \n",
                           "P99 TPOT (ms): ", "P95 ITL (ms): ", "Max ITL (ms): "}) {
    EXPECT_THAT(report, HasSubstr(line));
  }
  const json row = json::parse(serving_json(setup, metrics, {}, {}));
  for (const char* key : {"backend",
                          "dataset_name",
                          "request_rate",
                          "max_concurrency",
                          "sharegpt_output_len",
                          "random_input_len",
                          "random_output_len",
                          "random_range_ratio",
                          "duration",
                          "completed",
                          "total_input_tokens",
                          "total_output_tokens",
                          "total_output_tokens_retokenized",
                          "request_throughput",
                          "input_throughput",
                          "output_throughput",
                          "mean_e2e_latency_ms",
                          "median_e2e_latency_ms",
                          "std_e2e_latency_ms",
                          "p99_e2e_latency_ms",
                          "mean_ttft_ms",
                          "median_ttft_ms",
                          "std_ttft_ms",
                          "p99_ttft_ms",
                          "mean_tpot_ms",
                          "median_tpot_ms",
                          "std_tpot_ms",
                          "p99_tpot_ms",
                          "mean_itl_ms",
                          "median_itl_ms",
                          "std_itl_ms",
                          "p95_itl_ms",
                          "p99_itl_ms",
                          "concurrency",
                          "accept_length"}) {
    EXPECT_TRUE(row.contains(key)) << key;
  }
  EXPECT_FALSE(row.contains("ttfts"));
  const auto outcomes = three_outcomes();
  const json detailed = json::parse(serving_json(setup, metrics, {}, outcomes));
  EXPECT_EQ(detailed["errors"], json({"", "", "status 503"}));
  EXPECT_EQ(detailed["output_lens"], json({3, 3, 0}));
  EXPECT_EQ(detailed["itls"][0].size(), 2U);
  EXPECT_THAT(failure_lines(outcomes, 5), ElementsAre("1 failed: status 503"));
}

TEST(Reports, OfflineReportsDivideTokensByTime) {
  const OfflineResult result{.successful_requests = 4,
                             .total_latency_s = 2.0,
                             .total_input_tokens = 40,
                             .total_output_tokens = 20,
                             .last_gen_throughput = 11.0};
  EXPECT_THAT(offline_report(result), HasSubstr("Total token throughput (tok/s):          30.00     \n"));
  const json row = json::parse(offline_json(result));
  EXPECT_EQ(row["total_latency"], 2.0);
  EXPECT_EQ(row["request_throughput"], 2.0);
  EXPECT_EQ(row["output_throughput"], 10.0);
  EXPECT_EQ(row["backend"], "engine");
  EXPECT_EQ(row["accept_length"], nullptr);
}

TEST(Reports, SayWhenAcceptanceIsSimulated) {
  for (const bool simulated : {false, true}) {
    const AcceptLength length{.tokens = 2.58, .simulated = simulated};
    const LoadMetrics metrics = summarise(three_outcomes(), 2.0);
    const OfflineResult result{.total_latency_s = 2.0, .accept_length = length};
    const LoadExtras extras{.output_retokenized = {}, .accept_length = length};
    for (const std::string& report : {serving_report({}, metrics, extras), offline_report(result)}) {
      EXPECT_THAT(report, HasSubstr(simulated ? "Accept length (simulated):               2.58"
                                              : "Accept length:                           2.58"));
    }
    for (const std::string& text : {serving_json({}, metrics, extras, {}), offline_json(result)}) {
      const json row = json::parse(text);
      EXPECT_EQ(row["accept_length"], 2.58);
      EXPECT_EQ(row.value("acceptance", ""), simulated ? "simulated" : "");
    }
  }
}

}  // namespace
}  // namespace hadal::client
