// Tests what /generate refuses, and how it says so.
#include <gtest/gtest.h>

#include <string>

#include <boost/json.hpp>

#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

using testing::parsed;
using testing::TestServer;
namespace json = boost::json;

TEST(Generate, UnknownFieldsAreIgnoredAndUnsupportedOnesAreNot) {
  TestServer server;
  EXPECT_EQ(server
                .generate(R"({"input_ids":[3],"sampling_params":{"max_new_tokens":1},"what":{"x":[1]},
                                "image_data":null,"return_hidden_states":false})")
                .status,
            200);
  for (const char* field : {R"("lora_path":"x")", R"("image_data":["x"])", R"("return_hidden_states":true)",
                            R"("session_params":{"id":"x"})", R"("input_embeds":[[1.0]])"}) {
    const HttpResponse response = server.generate(fmt::format(R"({{"input_ids":[3],{}}})", field));
    EXPECT_EQ(response.status, 400) << field;
    EXPECT_NE(response.body.find("not supported"), std::string::npos) << response.body;
  }
}

struct BadBody {
  const char* body;
  const char* says;  // a part of the message
};

TEST(Generate, EveryBadBodyIsA400ThatNamesTheField) {
  TestServer server;
  const BadBody cases[] = {
      {"", "empty"},
      {"  ", "empty"},
      {"[1]", "JSON object"},
      {"3", "JSON object"},
      {"{", "not JSON"},
      {R"({"text":"a"} x)", "not JSON"},
      {"{\"text\":\"\xff\"}", "invalid UTF-8 at byte 9"},
      {R"({"text":NaN})", "not JSON"},
      {R"({})", "exactly one of text and input_ids"},
      {R"({"text":"a","input_ids":[1]})", "exactly one of text and input_ids"},
      {R"({"text":7})", "text is 7"},
      {R"({"text":[]})", "text"},
      {R"({"text":["a",1]})", "text[1]"},
      {R"({"input_ids":[]})", "input_ids"},
      {R"({"input_ids":[[]]})", "input_ids[0]"},
      {R"({"input_ids":[-1]})", "input_ids[0] is -1"},
      {R"({"input_ids":[4096]})", "[0, 4095]"},
      {R"({"input_ids":[1e999]})", "input_ids"},
      {R"({"input_ids":[1.5]})", "1.5"},
      {R"({"input_ids":"a"})", "input_ids"},
      {R"({"input_ids":[3],"stream":"yes"})", "stream"},
      {R"({"input_ids":[3],"rid":7})", "rid"},
      {R"({"input_ids":[3],"rid":["a","b"]})", "rid"},
      {R"({"input_ids":[3],"priority":1e30})", "priority"},
      {R"({"input_ids":[3],"return_logprob":1})", "return_logprob"},
      {R"({"input_ids":[3],"return_logprob":true,"logprob_start_len":1})", "logprob_start_len"},
      {R"({"input_ids":[3],"return_logprob":true,"top_logprobs_num":129})", "top_logprobs_num"},
      {R"({"input_ids":[3],"sampling_params":7})", "sampling_params"},
      {R"({"input_ids":[3],"sampling_params":[{},{}]})", "sampling_params"},
      {R"({"input_ids":[3],"sampling_params":{"temprature":1}})", "temperature"},
      {R"({"input_ids":[3],"sampling_params":{"temperature":-1}})", "sampling_params.temperature is -1"},
      {R"({"input_ids":[3],"sampling_params":{"temperature":"hot"}})", "sampling_params.temperature"},
      {R"({"input_ids":[3],"sampling_params":{"top_p":0}})", "[1e-30, 1]"},
      {R"({"input_ids":[3],"sampling_params":{"top_p":1.1}})", "top_p"},
      {R"({"input_ids":[3],"sampling_params":{"top_k":0}})", "top_k"},
      {R"({"input_ids":[3],"sampling_params":{"top_k":-2}})", "top_k"},
      {R"({"input_ids":[3],"sampling_params":{"min_p":2}})", "min_p"},
      {R"({"input_ids":[3],"sampling_params":{"frequency_penalty":2.5}})", "[-2, 2]"},
      {R"({"input_ids":[3],"sampling_params":{"presence_penalty":-3}})", "presence_penalty"},
      {R"({"input_ids":[3],"sampling_params":{"repetition_penalty":0}})", "repetition_penalty"},
      {R"({"input_ids":[3],"sampling_params":{"max_new_tokens":-1}})", "max_new_tokens"},
      {R"({"input_ids":[3],"sampling_params":{"max_new_tokens":99999999999999999999}})", "max_new_tokens"},
      {R"({"input_ids":[3],"sampling_params":{"max_new_tokens":4096}})", "4096"},
      {R"({"input_ids":[3],"sampling_params":{"min_new_tokens":9,"max_new_tokens":2}})", "min_new_tokens"},
      {R"({"input_ids":[3],"sampling_params":{"n":0}})", "sampling_params.n"},
      {R"({"input_ids":[3],"sampling_params":{"n":129}})", "sampling_params.n"},
      {R"({"input_ids":[3],"sampling_params":{"stop":7}})", "stop"},
      {R"({"input_ids":[3],"sampling_params":{"stop":["a",null]}})", "stop"},
      {R"({"input_ids":[3],"sampling_params":{"stop_token_ids":[5000]}})", "stop_token_ids"},
      {R"({"input_ids":[3],"sampling_params":{"logit_bias":{"x":1}}})", "logit_bias"},
      {R"({"input_ids":[3],"sampling_params":{"logit_bias":{"5":101}}})", "logit_bias"},
      {R"({"input_ids":[3],"sampling_params":{"sampling_seed":-1}})", "sampling_seed"},
      {R"({"input_ids":[3],"sampling_params":{"regex":"a","ebnf":"b"}})", "regex"},
      {R"({"input_ids":[3],"sampling_params":{"json_schema":7}})", "json_schema"},
      {R"({"input_ids":[3],"sampling_params":{"custom_params":{"a":1}}})", "custom_params"},
  };
  for (const BadBody& bad : cases) {
    const HttpResponse response = server.generate(bad.body);
    EXPECT_EQ(response.status, 400) << bad.body << " -> " << response.body;
    const json::value answer = parsed(response);
    EXPECT_EQ(answer.at("object").as_string(), "error");
    EXPECT_EQ(answer.at("code").to_number<int>(), 400);
    EXPECT_NE(std::string_view(answer.at("message").as_string()).find(bad.says), std::string::npos)
        << bad.body << " -> " << response.body;
  }
  std::string deep = R"({"text":"a","x":)";
  deep += std::string(200, '[') + std::string(200, ']') + "}";
  EXPECT_EQ(server.generate(deep).status, 400);
  // The last of duplicate keys counts.
  EXPECT_EQ(server.generate(R"({"input_ids":[9999],"input_ids":[3],"sampling_params":{"max_new_tokens":1}})")
                .status,
            200);
  EXPECT_EQ(server.engine().stats().num_requests, 1);
}

TEST(Generate, PromptsThatAreTooLongAreRefusedOrTruncated) {
  const std::string body = "{\"input_ids\":[" + [] {
    std::string ids = "3";
    for (int i = 0; i < 99; ++i) ids += ",3";
    return ids;
  }() + "]}";
  TestServer strict({.engine = {.context_length = 64}});
  const HttpResponse response = strict.generate(body);
  EXPECT_EQ(response.status, 400);
  EXPECT_NE(response.body.find("100 tokens"), std::string::npos) << response.body;
  EXPECT_EQ(parsed(response).at("param").as_string(), "input_ids");
  TestServer lenient({.server = {.allow_auto_truncate = true}, .engine = {.context_length = 64}});
  const json::value answer = parsed(lenient.generate(body));
  EXPECT_EQ(answer.at("meta_info").at("prompt_tokens").to_number<int64_t>(), 32);
  EXPECT_EQ(answer.at("meta_info").at("completion_tokens").to_number<int64_t>(), 32);
}

TEST(Generate, AFullQueueIsA503WithRetryAfter) {
  TestServer server({.engine = {.max_running_requests = 1, .max_queued_requests = 1}});
  server.engine().pause();
  std::vector<std::shared_ptr<testing::TestExchange>> waiting;
  HttpResponse refused;
  for (int i = 0; i < 4; ++i) {
    auto exchange =
        server.send("POST", "/generate", R"({"input_ids":[3],"sampling_params":{"max_new_tokens":2}})");
    if (exchange->complete) {
      refused = exchange->response;
    } else {
      waiting.push_back(std::move(exchange));
    }
  }
  EXPECT_EQ(refused.status, 503) << refused.body;
  bool retry_after = false;
  for (const auto& [name, value] : refused.headers) retry_after = retry_after || name == "Retry-After";
  EXPECT_TRUE(retry_after);
  const size_t running = waiting.size();
  server.engine().resume();
  for (const auto& exchange : waiting) {
    EXPECT_TRUE(server.wait(*exchange));
    EXPECT_EQ(exchange->response.status, 200);
    EXPECT_EQ(exchange->num_answers, 1);
  }
  EXPECT_GE(running, 1U);
}

TEST(Generate, ARidThatIsInUseIsRefused) {
  TestServer server;
  server.engine().pause();
  const auto first = server.send("POST", "/generate", R"({"input_ids":[3],"rid":"x"})");
  EXPECT_EQ(server.generate(R"({"input_ids":[3],"rid":"x"})").status, 400);
  server.engine().resume();
  EXPECT_TRUE(server.wait(*first));
  EXPECT_EQ(server.generate(R"({"input_ids":[3],"rid":"x","sampling_params":{"max_new_tokens":1}})").status,
            200);
}

TEST(Generate, DrainingRefusesNewWork) {
  TestServer server;
  server.server().drain(std::chrono::milliseconds(0));
  EXPECT_EQ(server.generate(R"({"input_ids":[3]})").status, 503);
}

}  // namespace
}  // namespace hadal::server
