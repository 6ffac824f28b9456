// Tests the answers of /generate: every form, streams, and clients that go away.
#include <gtest/gtest.h>

#include <string>

#include <boost/json.hpp>

#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

using testing::events_of;
using testing::parsed;
using testing::TestServer;
namespace json = boost::json;

std::string text_at(const json::value& value, const char* key) {
  return std::string(value.at(key).as_string());
}

TEST(Generate, AnswersATextWithSglangsFields) {
  TestServer server;
  const HttpResponse response =
      server.generate(R"({"text":"Hello","sampling_params":{"max_new_tokens":5},"rid":"abc"})");
  ASSERT_EQ(response.status, 200) << response.body;
  const json::value answer = parsed(response);
  const json::value& meta = answer.at("meta_info");
  const int64_t prompt = meta.at("prompt_tokens").to_number<int64_t>();
  EXPECT_EQ(static_cast<size_t>(prompt), server.tokenizer().encode("Hello").size());
  EXPECT_EQ(text_at(answer, "text"), server.said(prompt, 5));
  EXPECT_EQ(json::value_to<std::vector<int32_t>>(answer.at("output_ids")), server.said_ids(prompt, 5));
  EXPECT_EQ(text_at(meta, "id"), "abc");
  EXPECT_EQ(meta.at("completion_tokens").to_number<int64_t>(), 5);
  EXPECT_EQ(meta.at("cached_tokens").to_number<int64_t>(), 0);
  EXPECT_EQ(meta.at("finish_reason"), (json::value{{"type", "length"}, {"length", 5}}));
  EXPECT_GE(meta.at("e2e_latency").to_number<double>(), 0.0);
  EXPECT_EQ(meta.at("spec_verify_ct").to_number<int64_t>(), 0);
}

TEST(Generate, AcceptsIdsAndNeedsNoTokenizer) {
  TestServer server({.with_tokenizer = false});
  const json::value answer =
      parsed(server.generate(R"({"input_ids":[5,6,7],"sampling_params":{"max_new_tokens":3}})"));
  EXPECT_EQ(json::value_to<std::vector<int32_t>>(answer.at("output_ids")), server.said_ids(3, 3));
  EXPECT_FALSE(answer.as_object().contains("text"));
  EXPECT_EQ(server.generate(R"({"text":"a"})").status, 400);
  EXPECT_EQ(server.generate(R"({"input_ids":[5],"sampling_params":{"stop":"x"}})").status, 400);
}

TEST(Generate, DefaultsTo128TokensLoweredToTheContext) {
  TestServer server({.engine = {.context_length = 64}});
  const json::value answer = parsed(server.generate(R"({"input_ids":[5,6,7,8]})"));
  EXPECT_EQ(answer.at("meta_info").at("completion_tokens").to_number<int64_t>(), 60);
  TestServer roomy;
  const json::value all = parsed(roomy.generate(R"({"input_ids":[5,6,7,8]})"));
  EXPECT_EQ(all.at("meta_info").at("completion_tokens").to_number<int64_t>(), 128);
}

TEST(Generate, ZeroNewTokensComputesOnlyThePrompt) {
  TestServer server;
  const json::value answer =
      parsed(server.generate(R"({"input_ids":[5,6,7,8],"sampling_params":{"max_new_tokens":0}})"));
  EXPECT_TRUE(answer.at("output_ids").as_array().empty());
  EXPECT_EQ(text_at(answer, "text"), "");
}

TEST(Generate, BatchesHaveTheirOwnParametersAndKeepTheirOrder) {
  TestServer server;
  const json::value answer = parsed(server.generate(
      R"({"text":["a","b c d"],"sampling_params":[{"max_new_tokens":2},{"max_new_tokens":4}],"rid":"r"})"));
  const json::array& list = answer.as_array();
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[0].at("meta_info").at("completion_tokens").to_number<int64_t>(), 2);
  EXPECT_EQ(list[1].at("meta_info").at("completion_tokens").to_number<int64_t>(), 4);
  EXPECT_EQ(text_at(list[0].at("meta_info"), "id"), "r_0");
  EXPECT_EQ(text_at(list[1].at("meta_info"), "id"), "r_1");
  // A batch of one is a list too.
  EXPECT_TRUE(parsed(server.generate(R"({"text":["a"],"sampling_params":{"max_new_tokens":1}})")).is_array());
}

TEST(Generate, ManyChoicesOfOnePromptAreAList) {
  TestServer server;
  const json::value answer =
      parsed(server.generate(R"({"input_ids":[[3],[4,5]],"sampling_params":{"n":3,"max_new_tokens":2}})"));
  const json::array& list = answer.as_array();
  ASSERT_EQ(list.size(), 6U);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(list[i].at("meta_info").at("prompt_tokens").to_number<int64_t>(), i < 3 ? 1 : 2);
  }
}

TEST(Generate, StreamsCumulativeText) {
  TestServer server;
  const HttpResponse response = server.generate_step_by_step(
      R"({"input_ids":[3,4],"stream":true,"sampling_params":{"max_new_tokens":6}})");
  EXPECT_TRUE(response.content_type.starts_with("text/event-stream"));
  const auto events = events_of(response.body);
  ASSERT_EQ(events.size(), 6U);
  for (size_t i = 0; i < events.size(); ++i) {
    const auto count = static_cast<int64_t>(i + 1);
    EXPECT_EQ(text_at(events[i], "text"), server.said(2, count));
    EXPECT_EQ(json::value_to<std::vector<int32_t>>(events[i].at("output_ids")), server.said_ids(2, count));
    EXPECT_EQ(events[i].at("meta_info").at("finish_reason").is_null(), count < 6);
    EXPECT_FALSE(events[i].contains("index"));
  }
}

TEST(Generate, StreamsDifferencesWhenConfigured) {
  TestServer server({.server = {.stream_output_incremental = true}});
  const auto events = events_of(
      server.generate(R"({"input_ids":[3,4],"stream":true,"sampling_params":{"max_new_tokens":6}})").body);
  std::string text;
  std::vector<int32_t> ids;
  for (const json::object& event : events) {
    text += event.at("text").as_string();
    for (const json::value& id : event.at("output_ids").as_array()) ids.push_back(id.to_number<int32_t>());
  }
  EXPECT_EQ(text, server.said(2, 6));
  EXPECT_EQ(ids, server.said_ids(2, 6));
}

TEST(Generate, StreamedBatchesCarryTheirIndex) {
  TestServer server;
  const auto events = events_of(
      server.generate(R"({"input_ids":[[3],[3,4]],"stream":true,"sampling_params":{"max_new_tokens":3}})")
          .body);
  std::map<int64_t, std::string> last;
  for (const json::object& event : events) {
    last[event.at("index").to_number<int64_t>()] = std::string(event.at("text").as_string());
  }
  EXPECT_EQ(last.size(), 2U);
  EXPECT_EQ(last[0], server.said(1, 3));
  EXPECT_EQ(last[1], server.said(2, 3));
}

TEST(Generate, LogprobsHaveSglangsShape) {
  TestServer server;
  const json::value answer = parsed(server.generate(
      R"({"input_ids":[10,11,12],"return_logprob":true,"logprob_start_len":0,"top_logprobs_num":2,
          "return_text_in_logprobs":true,"sampling_params":{"max_new_tokens":2}})"));
  const json::value& meta = answer.at("meta_info");
  const json::array& input = meta.at("input_token_logprobs").as_array();
  ASSERT_EQ(input.size(), 3U);
  EXPECT_EQ(input[0], (json::array{nullptr, 10, "("}));
  EXPECT_EQ(input[1].at(1).to_number<int64_t>(), 11);
  EXPECT_FLOAT_EQ(input[1].at(0).to_number<float>(), -0.5F);
  const json::array& output = meta.at("output_token_logprobs").as_array();
  ASSERT_EQ(output.size(), 2U);
  EXPECT_EQ(output[0].at(2).as_string(), server.said(3, 1));
  EXPECT_TRUE(meta.at("input_top_logprobs").at(0).is_null());
  EXPECT_EQ(meta.at("output_top_logprobs").as_array().size(), 2U);
  EXPECT_EQ(meta.at("output_top_logprobs").at(0).as_array().size(), 2U);

  const json::value plain = parsed(server.generate(
      R"({"input_ids":[10,11],"return_logprob":true,"sampling_params":{"max_new_tokens":1}})"));
  EXPECT_TRUE(plain.at("meta_info").at("input_token_logprobs").as_array().empty());
  EXPECT_TRUE(plain.at("meta_info").at("output_token_logprobs").at(0).at(2).is_null());
  EXPECT_FALSE(plain.at("meta_info").as_object().contains("output_top_logprobs"));
}

// Returns how many positions the lists of an event or answer have: the prompt's and the answer's, each with
// and without alternatives.
std::vector<size_t> num_positions(const json::value& meta) {
  std::vector<size_t> out;
  for (const char* list :
       {"input_token_logprobs", "input_top_logprobs", "output_token_logprobs", "output_top_logprobs"}) {
    out.push_back(meta.at(list).as_array().size());
  }
  return out;
}

// The answers have more log-probabilities than one task turns into JSON (server/generation/delta_pieces.h).
TEST(Generate, AnswersMadeInManyTasksAreComplete) {
  json::array ids;
  for (int i = 0; i < 200; ++i) ids.push_back(10 + i);
  json::object body{{"input_ids", ids},
                    {"return_logprob", true},
                    {"logprob_start_len", 0},
                    {"top_logprobs_num", 128},
                    {"sampling_params", {{"max_new_tokens", 50}, {"ignore_eos", true}}}};
  TestServer server;
  const json::value whole = parsed(server.generate(json::serialize(body)));
  const json::value& meta = whole.at("meta_info");
  EXPECT_EQ(num_positions(meta), (std::vector<size_t>{200, 200, 50, 50}));
  for (size_t i = 1; i < 200; ++i) {
    EXPECT_EQ(meta.at("input_token_logprobs").at(i).at(1), ids[i]);
    EXPECT_EQ(meta.at("input_top_logprobs").at(i).as_array().size(), 128U);
  }
  body["stream"] = true;
  for (const bool incremental : {false, true}) {
    TestServer::Options options;
    options.server.stream_output_incremental = incremental;
    TestServer streaming(std::move(options));
    const HttpResponse stream = streaming.call("POST", "/generate", json::serialize(body));
    const std::vector<json::object> events = events_of(stream.body);
    const json::value& first = events.front().at("meta_info");
    EXPECT_EQ(first.at("input_token_logprobs"), meta.at("input_token_logprobs"));
    EXPECT_EQ(first.at("input_top_logprobs"), meta.at("input_top_logprobs"));
    json::array output;
    std::string text;
    for (const json::object& event : events) {
      if (!incremental) output.clear(), text.clear();
      for (const json::value& entry : event.at("meta_info").at("output_top_logprobs").as_array())
        output.push_back(entry);
      text += text_at(event, "text");
    }
    EXPECT_EQ(output, meta.at("output_top_logprobs").as_array());
    EXPECT_EQ(text, text_at(whole, "text"));
  }
}

TEST(Generate, NothingFromAStopStringOnIsStreamed) {
  TestServer server({.script = " alpha beta gamma delta"});
  const auto events = events_of(
      server
          .generate_step_by_step(
              R"({"input_ids":[3],"stream":true,"sampling_params":{"max_new_tokens":40,"stop":[" gam"]}})")
          .body);
  for (const json::object& event : events) {
    EXPECT_EQ(event.at("text").as_string().find(" g"), json::string::npos) << event;
  }
  EXPECT_EQ(text_at(events.back(), "text"), " alpha beta");
  EXPECT_EQ(events.back().at("meta_info").at("finish_reason"),
            (json::value{{"type", "stop"}, {"matched", " gam"}}));
}

TEST(Generate, NoStopTrimKeepsTheStopString) {
  TestServer server({.script = " alpha beta gamma delta"});
  const json::value answer = parsed(server.generate(
      R"({"input_ids":[3],"sampling_params":{"max_new_tokens":40,"stop":" beta","no_stop_trim":true}})"));
  EXPECT_EQ(text_at(answer, "text"), " alpha beta");
}

TEST(Generate, AStopExpressionEndsTheText) {
  TestServer server({.script = " alpha beta 123 delta"});
  const json::value answer = parsed(
      server.generate(R"({"input_ids":[3],"sampling_params":{"max_new_tokens":40,"stop_regex":"\\d{3}"}})"));
  EXPECT_EQ(text_at(answer, "text"), " alpha beta ");
  EXPECT_EQ(text_at(answer.at("meta_info").at("finish_reason"), "type"), "stop");
  EXPECT_EQ(text_at(answer.at("meta_info").at("finish_reason"), "matched"), "123");
  const HttpResponse broken =
      server.generate(R"({"input_ids":[3],"sampling_params":{"stop_regex":"(unclosed"}})");
  EXPECT_EQ(broken.status, 400);
  EXPECT_NE(broken.body.find("stop_regex"), std::string::npos) << broken.body;
}

// An expression may take milliseconds to compile. An error in a field shows when the body is parsed: inside
// send(), or later.
TEST(Generate, BodiesThatMayHaveStopExpressionsAreParsedOnAWorker) {
  TestServer server;
  const auto send = [&](const char* parameter) {
    return server.send("POST", "/generate",
                       fmt::format(R"({{"input_ids":[3],"sampling_params":{{{}}}}})", parameter));
  };
  EXPECT_TRUE(send(R"("temperature":"\u0041\u00e9")")->complete);
  for (const char* const parameter :
       {R"("stop_regex":"(")", R"("stop\u005fregex":"(")", R"("\u0073top_rege\u0078":"(")"}) {
    const auto exchange = send(parameter);
    EXPECT_FALSE(exchange->complete) << parameter;
    EXPECT_TRUE(server.wait(*exchange));
    EXPECT_EQ(exchange->response.status, 400);
    EXPECT_NE(exchange->response.body.find("stop_regex"), std::string::npos) << exchange->response.body;
  }
}

TEST(Generate, StopTokenIsCountedAndNotShown) {
  TestServer server;
  const int32_t stop = server.said_ids(2, 4).back();
  const json::value answer = parsed(server.generate(
      fmt::format(R"({{"input_ids":[3,4],"sampling_params":{{"stop_token_ids":[{}]}}}})", stop)));
  EXPECT_EQ(text_at(answer, "text"), server.said(2, 3));
  EXPECT_EQ(json::value_to<std::vector<int32_t>>(answer.at("output_ids")), server.said_ids(2, 4));
  EXPECT_EQ(answer.at("meta_info").at("finish_reason").at("matched").to_number<int32_t>(), stop);
}

TEST(Generate, AClientThatGoesAwayFreesItsResources) {
  TestServer server;
  const char* body = R"({"input_ids":[3],"stream":true,"sampling_params":{"max_new_tokens":4000}})";
  int64_t num_gone = 0;
  for (const bool early : {true, false}) {
    server.gate().allow(early ? 0 : 8);  // the engine cannot end before the client leaves
    const auto exchange = server.send("POST", "/generate", body);
    if (!early) {
      ASSERT_TRUE(server.io().run_until([&] { return exchange->num_writes > 0; }));
    }
    exchange->disconnect();
    server.gate().open();
    const int writes = exchange->num_writes;
    ++num_gone;
    ASSERT_TRUE(server.io().run_until([&] {
      const EngineStats stats = server.engine().stats();
      return stats.num_aborted == num_gone && stats.scheduler.num_running + stats.scheduler.num_queued == 0;
    }));
    EXPECT_EQ(exchange->num_writes, writes);
    EXPECT_FALSE(exchange->complete);
  }
  EXPECT_LT(server.engine().stats().generation_tokens, 4000);
}

TEST(Generate, ASlowReaderGetsEverythingInFewerEvents) {
  TestServer server;
  server.gate().allow(1);
  const auto exchange = server.send(
      "POST", "/generate", R"({"input_ids":[3],"stream":true,"sampling_params":{"max_new_tokens":200}})");
  exchange->is_writable = false;
  // The first event fills the buffer; after that nothing is written, however much is generated.
  ASSERT_TRUE(server.io().run_until([&] { return exchange->num_writes > 0; }));
  server.gate().open();
  ASSERT_TRUE(server.io().run_until([&] {
    const EngineStats stats = server.engine().stats();
    return stats.generation_tokens == 200 && stats.scheduler.num_running == 0;
  }));
  for (int i = 0; i < 20; ++i) server.io().run_until([n = 0]() mutable { return ++n > 1; });
  EXPECT_EQ(exchange->num_writes, 1);
  EXPECT_FALSE(exchange->complete);
  exchange->read_again();
  ASSERT_TRUE(server.wait(*exchange));
  const auto events = events_of(exchange->response.body);
  EXPECT_EQ(events.size(), 2U);
  EXPECT_EQ(text_at(events.back(), "text"), server.said(1, 200));
}

}  // namespace
}  // namespace hadal::server
