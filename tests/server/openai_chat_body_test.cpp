// Tests what bodies /v1/chat/completions accepts, and its errors.
#include <gtest/gtest.h>

#include <string>

#include <boost/json.hpp>

#include "tests/server/dialect_fixture.h"

namespace hadal::server {
namespace {

using testing::answering;
using testing::chat_body;
using testing::parsed;
using testing::str;
using testing::TestServer;
namespace json = boost::json;

TEST(OpenAiChatBody, MayHaveContentPartsHistoryAndAContinuedMessage) {
  TestServer server(answering(1, "x"));
  const auto tokens = [&](const std::string& body) {
    const HttpResponse response = server.call("POST", "/v1/chat/completions", body);
    EXPECT_EQ(response.status, 200) << response.body;
    return parsed(response).at("usage").at("prompt_tokens").to_number<int64_t>();
  };
  EXPECT_EQ(
      tokens(
          R"({"max_tokens":1,"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]})"),
      tokens(R"({"max_tokens":1,"messages":[{"role":"user","content":"a b","name":"me"}]})"));
  EXPECT_EQ(
      tokens(
          R"({"max_tokens":1,"messages":[{"role":"developer","content":"s"},{"role":"user","content":"a"}]})"),
      tokens(
          R"({"max_tokens":1,"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"}]})"));
  const std::string history =
      R"({"max_tokens":1,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":
        [{"id":"c","type":"function","function":{"name":"add","arguments":ARGS}}]},
        {"role":"tool","tool_call_id":"c","content":"3"}]})";
  const auto with = [&](std::string_view arguments) {
    std::string body = history;
    return body.replace(body.find("ARGS"), 4, arguments);
  };
  EXPECT_EQ(tokens(with(R"("{\"a\":1}")")), tokens(with(R"({"a":1})")));
  const int64_t open = tokens(
      R"({"max_tokens":1,"continue_final_message":true,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})");
  EXPECT_EQ(open, tokens(R"({"max_tokens":1,"messages":[{"role":"user","content":"a"}]})") + 1);
}

TEST(OpenAiChatBody, ErrorsNameTheFieldInOpenAisShape) {
  TestServer server(answering(1, "x"));
  const struct {
    std::string_view body, param, text;
  } cases[] = {
      {R"({})", "messages", "missing"},
      {R"({"messages":[]})", "messages", "empty"},
      {R"({"messages":"x"})", "messages", "list"},
      {R"({"messages":[{"role":"robot","content":"x"}]})", "messages[0].role", "robot"},
      {R"({"messages":[{"role":"user"}]})", "messages[0].content", "missing"},
      {R"({"messages":[{"role":"user","content":[{"type":"nonsense"}]}]})", "messages[0].content[0].type",
       "must be text"},
      {R"("temperature":-0.5)", "temperature", "-0.5"},
      {R"("temperature":1e31)", "temperature", "must be a number in [0, 1e+30]"},
      {R"("top_p":1.5)", "top_p", "1.5"},
      {R"("top_k":0)", "top_k", "0"},
      {R"("n":0)", "n", "[1, 128]"},
      {R"("frequency_penalty":3)", "frequency_penalty", "[-2, 2]"},
      {R"("presence_penalty":-3)", "presence_penalty", "[-2, 2]"},
      {R"("logit_bias":{"99999":1})", "logit_bias", "99999"},
      {R"("logit_bias":{"5":101})", "logit_bias.5", "is 101; must be a number in [-100, 100]"},
      {R"("logit_bias":{"5":null})", "logit_bias.5", "is null; must be a number in [-100, 100]"},
      {R"("logit_bias":{"x":1})", "logit_bias", R"(has the key "x"; must be a token id in [0, )"},
      {R"("stop":5)", "stop", "is 5; must be a string of at most 4096 bytes, or a list of at most 64 such"},
      {R"("max_tokens":0)", "max_tokens",
       "is 0; must be an integer in [1, 4095]: the context length of the model is 4096, and the prompt has "
       "a"},
      {R"("max_completion_tokens":-1)", "max_completion_tokens", "is -1; must be an integer in [1, 4095]"},
      {R"("max_tokens":100000)", "max_tokens", "4096"},
      {R"("max_completion_tokens":100000)", "max_completion_tokens", "4096"},
      {R"("min_tokens":5,"max_tokens":2)", "min_tokens", "5"},
      {R"("top_logprobs":21,"logprobs":true)", "top_logprobs", "[0, 20]"},
      {R"("top_logprobs":2)", "top_logprobs", "logprobs"},
      {R"("tool_choice":"required")", "tool_choice", "no tools"},
      {R"("tools":[{"type":"function"}])", "tools[0]", "function"},
      {R"("response_format":{"type":"xml"})", "response_format.type", "xml"},
      {R"("response_format":{"type":"txt"})", "response_format.type", "the nearest one is text"},
      {R"("response_format":{})", "response_format.type", "is null; must be text, json_object"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema", "schema"},
      {R"("response_format":{"type":"json_object"},"regex":"a")", "response_format", "regex"},
      {R"("reasoning_effort":"huge")", "reasoning_effort", "huge"},
      {R"("chat_template_kwargs":{"thinking":"yes"})", "chat_template_kwargs.thinking", "yes"},
      {R"("return_hidden_states":true)", "return_hidden_states", "not"},
      {R"("functions":[{"name":"a"}])", "functions", "tools"},
      {R"("guided_json":{"type":"object"})", "guided_json", "response_format"},
      {R"("guided_regex":"a")", "guided_regex", "use the field regex"},
      {R"("guided_choice":["a"])", "guided_choice", "use the field regex"},
      {R"("guided_grammar":"root ::= a")", "guided_grammar", "use the field ebnf"},
      {R"("structured_outputs":{"json":{}})", "structured_outputs", "response_format"},
      {R"("modalities":["text","audio"])", "modalities", "audio"},
      {R"("audio":{"voice":"x"})", "audio", "text only"},
      {R"("tools":[{"type":"function","function":{"name":"f","parameters":[1]}}])",
       "tools[0].function.parameters", "object"},
      {R"({"messages":[{"content":"x"}]})", "messages[0].role", "missing"},
      {R"("stream":1)", "stream", "true or false"},
      {R"("continue_final_message":true)", "messages", "continue_final_message"},
  };
  for (const auto& one : cases) {
    const std::string body = one.body.starts_with("{") ? std::string(one.body) : chat_body(one.body);
    const HttpResponse response = server.call("POST", "/v1/chat/completions", body);
    EXPECT_EQ(response.status, 400) << body;
    const json::value answer = parsed(response);
    const json::value& error = answer.at("error");
    EXPECT_EQ(error.at("param"), json::value(one.param)) << response.body;
    EXPECT_NE(str(error.at("message")).find(one.text), std::string::npos) << response.body;
    EXPECT_EQ(str(error.at("type")), "invalid_request_error");
  }
  const HttpResponse named =
      server.call("POST", "/v1/chat/completions",
                  chat_body(std::string(testing::kChatTools) +
                            R"(,"tool_choice":{"type":"function","function":{"name":"b"}})"));
  EXPECT_EQ(named.status, 400);
  EXPECT_EQ(str(parsed(named).at("error").at("param")), "tool_choice");
}

TEST(OpenAiChatBody, MaxCompletionTokensWinsOverItsOlderName) {
  TestServer server(answering(1, "x"));
  const auto tokens = [&](std::string_view fields) {
    const HttpResponse response =
        server.call("POST", "/v1/chat/completions", chat_body(std::string(fields) + R"(,"ignore_eos":true)"));
    EXPECT_EQ(response.status, 200) << response.body;
    return parsed(response).at("usage").at("completion_tokens").as_int64();
  };
  EXPECT_EQ(tokens(R"("max_tokens":5,"max_completion_tokens":2)"), 2);
  EXPECT_EQ(tokens(R"("max_completion_tokens":5,"max_tokens":2)"), 5);
  EXPECT_EQ(tokens(R"("max_completion_tokens":null,"max_tokens":2)"), 2);
}

TEST(OpenAiChatBody, MayHaveUnknownFieldsAndModels) {
  const std::string body = chat_body(
      R"("model":"any","max_tokens":2,"user":"u","metadata":{"a":"b"},"store":false,"service_tier":"auto","nonsense":[1],
         "chat_template_kwargs":{"other":1},"reasoning_effort":"high","logit_bias":{"5":-100},"rid":"my-id")");
  TestServer server(answering(1, "x"));
  const HttpResponse response = server.call("POST", "/v1/chat/completions", body);
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(str(parsed(response).at("model")), "any");
  EXPECT_EQ(str(parsed(response).at("id")), "my-id");
}

TEST(OpenAiChatBody, AModelWithoutATemplateIsAClearError) {
  TestServer server;
  const HttpResponse response = server.call("POST", "/v1/chat/completions", chat_body());
  EXPECT_EQ(response.status, 400);
  EXPECT_NE(response.body.find("chat template"), std::string::npos);
}

}  // namespace
}  // namespace hadal::server
