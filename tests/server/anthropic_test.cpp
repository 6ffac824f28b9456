// Tests Anthropic's /v1/messages and count_tokens over an engine that generates a script's tokens: messages,
// events, thinking, tools, stops, counts and errors.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <boost/json.hpp>

#include "server/anthropic/anthropic_messages.h"
#include "tests/server/dialect_fixture.h"

namespace hadal::server {
namespace {

using testing::chat_options;
using testing::kCalls;
using testing::named_events_of;
using testing::parsed;
using testing::str;
using testing::TestServer;
namespace json = boost::json;

constexpr std::string_view kAnthropicTools =
    R"("tools":[{"name":"add","description":"Add.","input_schema":{"type":"object","properties":{}}}])";
constexpr std::string_view kThinking = R"("thinking":{"type":"enabled","budget_tokens":1024})";

std::string message_body(std::string_view more = {}) {
  std::string body = R"({"max_tokens":2000,"messages":[{"role":"user","content":"Hi"}])";
  if (!more.empty()) body += ",";
  return body + std::string(more) + "}";
}

int64_t message_tokens(const std::string& body) {
  TestServer server(chat_options("x"));
  const HttpResponse response = server.call("POST", "/v1/messages/count_tokens", body);
  EXPECT_EQ(response.status, 200) << response.body;
  return parsed(response).at("input_tokens").to_number<int64_t>();
}

// Returns the options of a server whose model answers `text` to the prompt of `body` and then ends.
testing::TestServerOptions message_options(const std::string& body, std::string_view text) {
  return testing::answering(message_tokens(body), text);
}

// Returns the input of a call whose arguments are this text, which may have broken off.
json::value input_of(const std::string& arguments) {
  boost::system::error_code error;
  const json::value input = json::parse(arguments, error);
  return error ? json::value{{"INVALID_JSON", arguments}} : input;
}

// Builds the message from a stream as a client does, and checks the order of the events.
json::object streamed_message(TestServer& server, std::string body) {
  body.insert(1, R"("stream":true,)");
  const HttpResponse response = server.call("POST", "/v1/messages", body);
  EXPECT_EQ(response.status, 200) << response.body;
  EXPECT_TRUE(response.content_type.starts_with("text/event-stream"));
  const std::vector<json::value> events = named_events_of(response.body);
  if (events.size() < 4) {
    ADD_FAILURE() << response.body;
    return {};
  }
  EXPECT_EQ(str(events.front().at("type")), "message_start");
  EXPECT_EQ(str(events.back().at("type")), "message_stop");
  json::object message = events.front().at("message").as_object();
  EXPECT_TRUE(message.at("stop_reason").is_null());
  json::array blocks;
  std::string input;
  bool open = false;
  bool ended = false;
  for (size_t i = 1; i + 1 < events.size(); ++i) {
    const json::value& data = events[i];
    const std::string name = str(data.at("type"));
    EXPECT_FALSE(ended) << "something after message_delta: " << name;
    if (name == "ping") continue;
    if (name == "message_delta") {
      EXPECT_FALSE(open);
      ended = true;
      message["stop_reason"] = data.at("delta").at("stop_reason");
      message["stop_sequence"] = data.at("delta").at("stop_sequence");
      message["usage"] = data.at("usage");
      continue;
    }
    if (name == "content_block_start") {
      EXPECT_FALSE(open);
      open = true;
      input.clear();
      EXPECT_EQ(data.at("index").to_number<size_t>(), blocks.size());
      blocks.push_back(data.at("content_block"));
      continue;
    }
    EXPECT_TRUE(open) << name << " outside of a block";
    EXPECT_EQ(data.at("index").to_number<size_t>() + 1, blocks.size());
    json::object& block = blocks.back().as_object();
    if (name == "content_block_stop") {
      open = false;
      if (str(block.at("type")) == "tool_use") block["input"] = input_of(input);
      continue;
    }
    const json::value& delta = data.at("delta");
    const std::string type = str(delta.at("type"));
    if (type == "text_delta") {
      block["text"] = str(block.at("text")) + str(delta.at("text"));
    } else if (type == "thinking_delta") {
      block["thinking"] = str(block.at("thinking")) + str(delta.at("thinking"));
    } else if (type == "signature_delta") {
      block["signature"] = delta.at("signature");
    } else {
      EXPECT_EQ(type, "input_json_delta");
      input += str(delta.at("partial_json"));
    }
  }
  EXPECT_TRUE(ended);
  message["content"] = blocks;
  return message;
}

json::object whole_message(TestServer& server, const std::string& body) {
  const HttpResponse response = server.call("POST", "/v1/messages", body);
  EXPECT_EQ(response.status, 200) << response.body;
  return parsed(response).as_object();
}

// Removes what is random, so that two answers can be compared.
json::object without_message_ids(json::object message) {
  message.erase("id");
  message.erase("usage");
  for (json::value& block : message.at("content").as_array()) {
    if (json::object& object = block.as_object(); object.contains("signature")) object["signature"] = "s";
    if (json::object& object = block.as_object(); object.contains("id")) object["id"] = "i";
  }
  return message;
}

std::string message_error(const HttpResponse& response) {
  const json::value error = parsed(response);
  EXPECT_EQ(str(error.at("type")), "error");
  EXPECT_EQ(error.as_object().size(), 2U) << "only Anthropic's fields";
  return str(error.at("error").at("type")) + " " + str(error.at("error").at("message"));
}

TEST(AnthropicMessages, HasTheFormOfAnthropicsMessage) {
  const std::string body =
      message_body(R"("model":"claude-x","metadata":{"user_id":"u"},"service_tier":"auto")");
  TestServer server(message_options(body, "Hello there"));
  const json::object message = whole_message(server, body);
  EXPECT_TRUE(str(message.at("id")).starts_with("msg_"));
  EXPECT_EQ(str(message.at("type")), "message");
  EXPECT_EQ(str(message.at("role")), "assistant");
  EXPECT_EQ(str(message.at("model")), "claude-x");
  EXPECT_EQ(message.at("content"), json::parse(R"([{"type":"text","text":"Hello there"}])"));
  EXPECT_EQ(str(message.at("stop_reason")), "end_turn");
  EXPECT_TRUE(message.at("stop_sequence").is_null());
  const json::value& usage = message.at("usage");
  EXPECT_EQ(usage.at("input_tokens").to_number<int64_t>(), message_tokens(body));
  EXPECT_GT(usage.at("output_tokens").to_number<int64_t>(), 1);
}

TEST(AnthropicMessages, AStreamSumsUpToTheSameMessageWithThinkingTextAndCalls) {
  const std::string body = message_body(std::string(kThinking) + "," + std::string(kAnthropicTools));
  TestServer server(message_options(body, "I think.</think>Let me add." + std::string(kCalls)));
  const json::object message = whole_message(server, body);
  const json::array& content = message.at("content").as_array();
  ASSERT_EQ(content.size(), 4U) << json::serialize(content);
  EXPECT_EQ(str(content[0].at("thinking")), "I think.");
  EXPECT_FALSE(str(content[0].at("signature")).empty());
  EXPECT_EQ(str(content[1].at("text")), "Let me add.");
  EXPECT_TRUE(str(content[2].at("id")).starts_with("toolu_"));
  EXPECT_EQ(str(content[2].at("name")), "add");
  EXPECT_EQ(content[2].at("input"), json::parse(R"({"a":1})"));
  EXPECT_EQ(content[3].at("input"), json::parse(R"({"a":2})"));
  EXPECT_EQ(str(message.at("stop_reason")), "tool_use");
  EXPECT_EQ(without_message_ids(streamed_message(server, body)), without_message_ids(message));
}

TEST(AnthropicMessages, ThinkingThatIsOmittedLeavesASignedBlockWithoutText) {
  const std::string body =
      message_body(R"("thinking":{"type":"enabled","budget_tokens":1024,"display":"omitted"})");
  TestServer server(message_options(body, "I think.</think>So."));
  const json::object message = whole_message(server, body);
  EXPECT_EQ(str(message.at("content").at(0).at("thinking")), "");
  EXPECT_EQ(str(message.at("content").at(1).at("text")), "So.");
  EXPECT_EQ(without_message_ids(streamed_message(server, body)), without_message_ids(message));
}

TEST(AnthropicMessages, AStopSequenceIsNamedAndNotPartOfTheText) {
  const std::string body = message_body(R"("stop_sequences":["xyz","two"])");
  TestServer server(message_options(body, "one two three"));
  const json::object message = whole_message(server, body);
  EXPECT_EQ(str(message.at("content").at(0).at("text")), "one ");
  EXPECT_EQ(str(message.at("stop_reason")), "stop_sequence");
  EXPECT_EQ(str(message.at("stop_sequence")), "two");
  EXPECT_EQ(without_message_ids(streamed_message(server, body)), without_message_ids(message));
}

TEST(AnthropicMessages, AnAnswerThatEndsByItsLengthSaysSo) {
  const std::string body = R"({"max_tokens":1,"messages":[{"role":"user","content":"Hi"}]})";
  TestServer server(message_options(body, "one two three"));
  const json::object message = whole_message(server, body);
  EXPECT_EQ(str(message.at("stop_reason")), "max_tokens");
  EXPECT_EQ(message.at("usage").at("output_tokens").to_number<int64_t>(), 1);
}

TEST(AnthropicMessages, ACallThatBreaksOffIsTheSameInAMessageAsInItsStream) {
  const std::string body = message_body(kAnthropicTools);
  TestServer server(message_options(body, kCalls.substr(0, kCalls.find("1}"))));
  EXPECT_EQ(without_message_ids(streamed_message(server, body)),
            without_message_ids(whole_message(server, body)));
}

TEST(AnthropicMessages, TokensFromTheCacheAreCountedApart) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "word ";
  const std::string body = R"({"max_tokens":4,"messages":[{"role":"user","content":")" + text + R"("}]})";
  TestServer server(message_options(body, "one two three four five"));
  const json::value first = whole_message(server, body).at("usage");
  const json::value second = whole_message(server, body).at("usage");
  const auto number = [](const json::value& usage, const char* name) {
    return usage.at(name).to_number<int64_t>();
  };
  EXPECT_EQ(number(first, "cache_read_input_tokens"), 0);
  EXPECT_GT(number(second, "cache_read_input_tokens"), 0);
  EXPECT_EQ(number(first, "input_tokens"),
            number(second, "input_tokens") + number(second, "cache_read_input_tokens"));
  const json::value events = streamed_message(server, body).at("usage");
  EXPECT_EQ(number(events, "cache_read_input_tokens"), number(second, "cache_read_input_tokens"));
}

TEST(AnthropicMessages, ALastTurnOfTheAssistantIsContinued) {
  const std::string asked = R"({"max_tokens":9,"messages":[{"role":"user","content":"Hi"})";
  const std::string body = asked + R"(,{"role":"assistant","content":"The answer is"}]})";
  EXPECT_GT(message_tokens(body), message_tokens(asked + "]}"));
  TestServer server(message_options(body, " 42"));
  EXPECT_EQ(str(whole_message(server, body).at("content").at(0).at("text")), " 42");
}

TEST(AnthropicMessages, AConversationBecomesMessagesOfChat) {
  const json::value body =
      json::parse(R"({"system":[{"type":"text","text":"Be"},{"type":"text","text":"brief.",
    "cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"Add."},
    {"role":"assistant","content":[{"type":"thinking","thinking":"Hm.","signature":"s"},
      {"type":"redacted_thinking","data":"x"},{"type":"text","text":"Well."},
      {"type":"tool_use","id":"t1","name":"add","input":{"a":1}},{"type":"tool_use","id":"t2","name":"add"}]},
    {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"one"},
      {"type":"tool_result","tool_use_id":"t2","is_error":true,"content":[{"type":"text","text":"two"}]},
      {"type":"text","text":"So?"},{"type":"text","text":"Now."}]}]})");
  FieldReader reader(body.as_object());
  ChatMessages messages;
  read_anthropic_messages(reader, messages);
  ASSERT_TRUE(reader.ok()) << reader.status().message;
  std::string shown;
  for (size_t i = 0; i < messages.list.size(); ++i) {
    const ChatMessage& message = messages.list[i];
    shown += messages.places[i] + " " + message.role + " " + message.tool_call_id + "[" +
             message.reasoning_content + "][" + message.content + "]";
    for (const ToolCall& call : message.tool_calls) shown += call.id + call.name + call.arguments;
    shown += "\n";
  }
  EXPECT_EQ(shown,
            "system system [][Be\nbrief.]\n"
            "messages[0] user [][Add.]\n"
            "messages[1] assistant [Hm.][Well.]t1add{\"a\":1}t2add{}\n"
            "messages[2] tool t1[][one]\n"
            "messages[2] tool t2[][Error: two]\n"
            "messages[2] user [][So?\nNow.]\n");
}

TEST(AnthropicMessages, ErrorsNameTheFieldInAnthropicsWords) {
  TestServer server(chat_options("x"));
  const auto messages = [](std::string_view list) {
    return R"({"max_tokens":9,"messages":[)" + std::string(list) + "]}";
  };
  const struct {
    std::string body, error;
  } cases[] = {
      {R"({"messages":[]})", "max_tokens: is missing; must be the most tokens that the answer may have"},
      {messages(""), "messages: is empty; must be one message or more"},
      {messages(R"({"role":"wizard","content":"x"})"),
       "messages[0].role is \"wizard\"; must be user, assistant or system"},
      {messages(R"({"role":"user","content":[{"type":"image","source":{}}]})"),
       "messages[0].content[0].type is \"image\"; must be text or tool_result: the models read text "
       "only"},
      {messages(R"({"role":"user","content":[{"type":"tool_result"}]})"),
       "messages[0].content[0].tool_use_id: is missing; must be a string"},
      {messages(
           R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"image"}]}]})"),
       "messages[0].content[0].content[0].type is \"image\"; must be text: the models read text only"},
      {messages(R"({"role":"assistant","content":[{"type":"tool_use","id":"t","name":"add","input":"x"}]})"),
       "messages[0].content[0].input is \"x\"; must be an object"},
      {messages(
           R"({"role":"user","content":"x"},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"add"}]})"),
       "messages[1].content: has a tool_use, after which a message of the user must have its tool_result"},
      {message_body(R"("tools":[{"type":"web_search_20250305","name":"web_search"}])"),
       "tools[0].type is \"web_search_20250305\"; must be custom: the server has no tools of its own"},
      {message_body(R"("tools":[{"name":"add"}])"),
       "tools[0].input_schema: is missing; must be a JSON schema, which is an object"},
      {message_body(std::string(kAnthropicTools) + R"(,"tool_choice":{"type":"tool","name":"sub"})"),
       "tool_choice.name: names \"sub\", which is not among the tools"},
      {message_body(R"("tool_choice":{"type":"any"})"),
       "tool_choice.type: is \"any\", but there are no tools"},
      {message_body(R"("thinking":{"type":"enabled"})"),
       "thinking.budget_tokens: is missing; must be 1024 or more"},
      {message_body(R"("thinking":{"type":"enabled","budget_tokens":2000})"),
       "thinking.budget_tokens is 2000; must be at least 1024 and less than max_tokens, which is 2000"},
      {message_body(R"("mcp_servers":[{"url":"x"}])"),
       "mcp_servers: is not supported: the server has no tools of its own"},
      {message_body(R"("n":2)"), "n: is 2; must be 1, because an answer here has one choice"},
      {message_body(R"("output_config":{"format":{"type":"xml"}})"),
       "output_config.format.type is \"xml\"; must be json_schema"},
      {"[]", "the body is []; must be a JSON object"},
  };
  for (const auto& one : cases) {
    const HttpResponse response = server.call("POST", "/v1/messages", one.body);
    EXPECT_EQ(response.status, 400) << one.body;
    EXPECT_EQ(message_error(response), "invalid_request_error " + one.error);
  }
}

TEST(AnthropicMessages, AnErrorOfTheModelsFormatNamesTheClientsMessage) {
  testing::TestServerOptions options = chat_options("x");
  options.chat_format = ChatFormat::kV32;
  TestServer server(options);
  const std::string body =
      R"({"max_tokens":9,"system":"Be brief.","messages":[{"role":"user","content":"a"},)"
      R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"x"}]}]})";
  const std::string error = message_error(server.call("POST", "/v1/messages", body));
  EXPECT_TRUE(error.starts_with("invalid_request_error messages[1]")) << error;
}

TEST(AnthropicMessages, EveryRefusalOnItsPathsHasAnthropicsForm) {
  testing::TestServerOptions options = chat_options("x");
  options.server.keys = testing::keys_of("secret");
  TestServer server(options);
  EXPECT_TRUE(message_error(server.call("POST", "/v1/messages", message_body()))
                  .starts_with("authentication_error "));
  EXPECT_TRUE(message_error(server.call("POST", "/v1/messages/batches", "{}", {{"x-api-key", "secret"}}))
                  .starts_with("not_found_error "));
  const HttpResponse method = server.call("GET", "/v1/messages", {}, {{"x-api-key", "secret"}});
  EXPECT_EQ(method.status, 405);
  EXPECT_TRUE(message_error(method).starts_with("invalid_request_error "));
}

TEST(AnthropicMessages, TheKeyMayComeAsXApiKeyOnEveryPath) {
  testing::TestServerOptions options = chat_options("x");
  options.server.keys = testing::keys_of("secret");
  TestServer server(options);
  const auto status = [&](HeaderList headers) {
    return server.call("GET", "/v1/models", {}, std::move(headers)).status;
  };
  EXPECT_EQ(status({{"x-api-key", "secret"}, {"anthropic-version", "2023-06-01"}}), 200);
  EXPECT_EQ(status({{"x-api-key", "other"}}), 401);
  EXPECT_EQ(status({{"authorization", "Bearer secret"}, {"x-api-key", "other"}}), 200);
  EXPECT_EQ(status({{"authorization", "Bearer other"}, {"x-api-key", "secret"}}), 401);
  EXPECT_EQ(status({}), 401);
}

TEST(AnthropicMessages, AnAbortIsTheReasonOfTheStop) {
  testing::TestServerOptions options = chat_options("one two three four");
  TestServer server(options);
  server.gate().allow(2);
  const auto exchange =
      server.send("POST", "/v1/messages", message_body(R"("rid":"mine","ignore_eos":true,"stream":true)"));
  ASSERT_TRUE(server.io().run_until([&] { return exchange->num_writes > 0; }));
  EXPECT_EQ(server.call("POST", "/abort_request", R"({"rid":"mine"})").status, 200);
  server.gate().open();
  ASSERT_TRUE(server.wait(*exchange));
  const std::vector<json::value> events = named_events_of(exchange->response.body);
  ASSERT_GT(events.size(), 2U);
  EXPECT_EQ(str(events[events.size() - 2].at("delta").at("stop_reason")), "abort");
}

TEST(AnthropicCount, CountsWhatTheMessageHasAsItsInput) {
  const std::string body = message_body(std::string(kAnthropicTools));
  TestServer server(message_options(body, "x"));
  EXPECT_EQ(whole_message(server, body).at("usage").at("input_tokens").to_number<int64_t>(),
            message_tokens(body));
  EXPECT_EQ(message_tokens(R"({"messages":[{"role":"user","content":"Hi"}]})"),
            message_tokens(message_body()));
}

TEST(AnthropicCount, APromptThatDoesNotFitIsRefusedEvenWithAutoTruncate) {
  testing::TestServerOptions options = chat_options("x");
  options.server.allow_auto_truncate = true;
  TestServer server(options);
  std::string text;
  for (int i = 0; i < 6000; ++i) text += "word ";
  const HttpResponse response = server.call("POST", "/v1/messages/count_tokens",
                                            R"({"messages":[{"role":"user","content":")" + text + R"("}]})");
  EXPECT_EQ(response.status, 400);
  EXPECT_NE(message_error(response).find("at most 4095 are allowed"), std::string::npos) << response.body;
}

}  // namespace
}  // namespace hadal::server
