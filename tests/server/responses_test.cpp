// Tests OpenAI's /v1/responses over an engine that generates a script's tokens: responses, events, reasoning,
// calls, stored responses and errors.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <boost/json.hpp>

#include "base/printable.h"
#include "server/responses/responses_input.h"
#include "tests/server/dialect_fixture.h"

namespace hadal::server {
namespace {

using testing::chat_options;
using testing::kCalls;
using testing::parsed;
using testing::str;
using testing::TestServer;
namespace json = boost::json;

constexpr std::string_view kResponsesTools =
    R"("tools":[{"type":"function","name":"add","description":"Add.","parameters":{"type":"object","properties":{}}}])";

std::string response_body(std::string_view more = {}) {
  std::string body = R"({"input":"Hi")";
  if (!more.empty()) body += ",";
  return body + std::string(more) + "}";
}

int64_t input_tokens_of(TestServer& server, const std::string& body) {
  const HttpResponse response = server.call("POST", "/v1/responses/input_tokens", body);
  EXPECT_EQ(response.status, 200) << response.body;
  return parsed(response).at("input_tokens").to_number<int64_t>();
}

// Returns the options of a server whose model answers `text` to the prompt of `body` and then ends.
testing::TestServerOptions response_options(const std::string& body, std::string_view text) {
  TestServer counting(chat_options("x"));
  return testing::answering(input_tokens_of(counting, body), text);
}

json::object whole_response(TestServer& server, const std::string& body, HeaderList headers = {}) {
  const HttpResponse response = server.call("POST", "/v1/responses", body, std::move(headers));
  EXPECT_EQ(response.status, 200) << response.body;
  return parsed(response).as_object();
}

std::vector<json::value> response_events(const std::string& body) {
  std::vector<json::value> events = testing::named_events_of(body);
  for (size_t i = 0; i < events.size(); ++i)
    EXPECT_EQ(events[i].at("sequence_number").to_number<size_t>(), i);
  return events;
}

std::vector<json::value> streamed_response(TestServer& server, std::string body) {
  body.insert(1, R"("stream":true,)");
  const HttpResponse response = server.call("POST", "/v1/responses", body);
  EXPECT_EQ(response.status, 200) << response.body;
  return response_events(response.body);
}

// Removes what is random, so that two responses can be compared.
json::object without_response_ids(json::object response) {
  for (const char* name : {"id", "created_at", "usage"}) response.erase(name);
  for (json::value& item : response.at("output").as_array()) {
    item.as_object().erase("id");
    item.as_object().erase("call_id");
  }
  return response;
}

std::string response_error(const HttpResponse& response) {
  return str(parsed(response).at("error").at("message"));
}

TEST(Responses, HasTheFormOfOpenAisResponse) {
  const std::string body = response_body(
      R"("model":"m","instructions":"Be brief.","metadata":{"a":"b"},"temperature":0.5,"max_output_tokens":50)");
  TestServer server(response_options(body, "Hello there"));
  const json::object response = whole_response(server, body);
  EXPECT_TRUE(str(response.at("id")).starts_with("resp_"));
  EXPECT_EQ(str(response.at("object")), "response");
  EXPECT_EQ(str(response.at("status")), "completed");
  EXPECT_EQ(str(response.at("model")), "m");
  EXPECT_EQ(str(response.at("instructions")), "Be brief.");
  EXPECT_EQ(response.at("metadata"), json::parse(R"({"a":"b"})"));
  EXPECT_EQ(response.at("temperature").to_number<double>(), 0.5);
  EXPECT_EQ(response.at("max_output_tokens").to_number<int64_t>(), 50);
  EXPECT_EQ(response.at("tools"), json::parse("[]"));
  EXPECT_TRUE(response.at("error").is_null());
  const json::value& item = response.at("output").at(0);
  EXPECT_EQ(str(item.at("type")), "message");
  EXPECT_EQ(str(item.at("content").at(0).at("type")), "output_text");
  EXPECT_EQ(str(item.at("content").at(0).at("text")), "Hello there");
  const json::value& usage = response.at("usage");
  EXPECT_EQ(usage.at("input_tokens").to_number<int64_t>(), input_tokens_of(server, body));
  EXPECT_EQ(usage.at("total_tokens").to_number<int64_t>(),
            usage.at("input_tokens").to_number<int64_t>() + usage.at("output_tokens").to_number<int64_t>());
}

TEST(Responses, AStreamHasTheEventsOfEachItemInOrderAndEndsWithTheWholeResponse) {
  const std::string body = response_body(std::string(kResponsesTools) + R"(,"reasoning":{"effort":"high"})");
  TestServer server(response_options(body, "I think.</think>Let me add." + std::string(kCalls)));
  const std::vector<json::value> events = streamed_response(server, body);
  std::string kinds;
  std::string text, reasoning, arguments;
  for (const json::value& event : events) {
    const std::string type = str(event.at("type")).substr(std::string_view("response.").size());
    if (!kinds.ends_with(type + " ")) kinds += type + " ";
    if (type == "output_text.delta") text += str(event.at("delta"));
    if (type == "reasoning_text.delta") reasoning += str(event.at("delta"));
    if (type == "function_call_arguments.delta") arguments += str(event.at("delta"));
  }
  EXPECT_EQ(kinds,
            "created in_progress "
            "output_item.added content_part.added reasoning_text.delta reasoning_text.done content_part.done "
            "output_item.done "
            "output_item.added content_part.added output_text.delta output_text.done content_part.done "
            "output_item.done "
            "output_item.added function_call_arguments.delta function_call_arguments.done output_item.done "
            "output_item.added function_call_arguments.delta function_call_arguments.done output_item.done "
            "completed ");
  EXPECT_EQ(reasoning, "I think.");
  EXPECT_EQ(text, "Let me add.");
  EXPECT_EQ(arguments, "{\"a\": 1}{\"a\": 2}");
  if (events.empty()) return;
  EXPECT_EQ(str(events.front().at("response").at("status")), "in_progress");
  const json::object last = events.back().at("response").as_object();
  ASSERT_EQ(last.at("output").as_array().size(), 4U);
  EXPECT_GT(last.at("usage").at("output_tokens_details").at("reasoning_tokens").to_number<int64_t>(), 0);
  json::array done;
  for (const json::value& event : events)
    if (str(event.at("type")) == "response.output_item.done") done.push_back(event.at("item"));
  EXPECT_EQ(done, last.at("output").as_array());
  EXPECT_EQ(without_response_ids(whole_response(server, body)), without_response_ids(last));
}

TEST(Responses, TheLengthThatEndsAnAnswerMakesItIncomplete) {
  const std::string body = response_body(R"("max_output_tokens":1)");
  TestServer server(response_options(body, "one two three"));
  const json::object response = whole_response(server, body);
  EXPECT_EQ(str(response.at("status")), "incomplete");
  EXPECT_EQ(str(response.at("incomplete_details").at("reason")), "max_output_tokens");
  EXPECT_EQ(str(response.at("output").at(0).at("status")), "incomplete");
  const std::vector<json::value> events = streamed_response(server, body);
  EXPECT_EQ(str(events.back().at("type")), "response.incomplete");
}

TEST(Responses, AConversationGoesOnFromAStoredResponse) {
  TestServer server(chat_options("one two"));
  const std::string first_body = response_body(R"("instructions":"Be brief.","max_output_tokens":3)");
  const json::object first = whole_response(server, first_body);
  const std::string said = str(first.at("output").at(0).at("content").at(0).at("text"));
  const std::string id = str(first.at("id"));
  const std::string next = R"({"input":"More","previous_response_id":")" + id + R"("})";
  const json::object by_hand{{"input", json::array{{{"role", "user"}, {"content", "Hi"}},
                                                   {{"role", "assistant"}, {"content", said}},
                                                   {{"role", "user"}, {"content", "More"}}}}};
  EXPECT_EQ(input_tokens_of(server, next), input_tokens_of(server, json::serialize(by_hand)))
      << "instructions do not carry over";
  const HttpResponse again = server.call("GET", "/v1/responses/" + id);
  EXPECT_EQ(parsed(again), json::value(first));
  const HttpResponse deleted = server.call("DELETE", "/v1/responses/" + id);
  EXPECT_EQ(parsed(deleted), json::value({{"id", id}, {"object", "response"}, {"deleted", true}}));
  EXPECT_EQ(server.call("GET", "/v1/responses/" + id).status, 404);
  EXPECT_EQ(server.call("DELETE", "/v1/responses/" + id).status, 404);
  const HttpResponse lost = server.call("POST", "/v1/responses", next);
  EXPECT_EQ(lost.status, 400);
  EXPECT_TRUE(response_error(lost).starts_with("previous_response_id: there is no stored response \"resp_"));
}

// Returns how many tokens of a follow-up's prompt were found in the cache.
int64_t cached_of(TestServer& server, const std::string& id, std::string_view more) {
  const json::object answer =
      whole_response(server, R"({"input":"More","max_output_tokens":1,"previous_response_id":")" + id + "\"" +
                                 std::string(more) + "}");
  return answer.at("usage").at("input_tokens_details").at("cached_tokens").to_number<int64_t>();
}

TEST(Responses, AFollowUpHasTheSaltOfWhatItContinuesUnlessItHasAnother) {
  const std::string words(400, 'x');
  const std::string salted = R"({"input":")" + words + R"(","max_output_tokens":1,"cache_salt":"secret"})";
  for (const bool is_continued_in_between : {false, true}) {
    TestServer server(chat_options("one two"));
    std::string id = str(whole_response(server, salted).at("id"));
    if (is_continued_in_between) {
      const json::object between = whole_response(
          server, R"({"input":"And","max_output_tokens":1,"previous_response_id":")" + id + R"("})");
      id = str(between.at("id"));
    }
    // A client that has the conversation's text and not the salt does not find it in the cache.
    const std::string guess = R"({"input":")" + words + R"(","max_output_tokens":1})";
    EXPECT_EQ(whole_response(server, guess).at("usage").at("input_tokens_details").at("cached_tokens"), 0);
    EXPECT_EQ(cached_of(server, id, R"(,"cache_salt":"other")"), 0);
    EXPECT_GE(cached_of(server, id, ""), 64) << "its own salt is inherited";
    EXPECT_GE(cached_of(server, id, R"(,"cache_salt":"secret")"), 64);
    EXPECT_GE(cached_of(server, id, R"(,"cache_salt":null)"), 64);
  }
}

// If the follow-up were computed without a salt, another client's guess would now find it.
TEST(Responses, AFollowUpOfASaltedResponseLeavesNothingForRequestsWithoutASalt) {
  const std::string words(400, 'x');
  TestServer server(chat_options("one two"));
  const std::string id = str(
      whole_response(server, R"({"input":")" + words + R"(","max_output_tokens":1,"cache_salt":"secret"})")
          .at("id"));
  EXPECT_GE(cached_of(server, id, ""), 64);
  const std::string guess = R"({"input":")" + words + R"(","max_output_tokens":1})";
  EXPECT_EQ(whole_response(server, guess).at("usage").at("input_tokens_details").at("cached_tokens"), 0);
}

TEST(Responses, AStreamIsStoredAsWell) {
  const std::string body = response_body();
  TestServer server(response_options(body, "Hello"));
  const json::value last = streamed_response(server, body).back().at("response");
  EXPECT_EQ(parsed(server.call("GET", "/v1/responses/" + str(last.at("id")))), last);
}

TEST(Responses, WithStoreFalseNothingIsStored) {
  TestServer server(chat_options("one two"));
  const json::object response =
      whole_response(server, response_body(R"("store":false,"max_output_tokens":2)"));
  EXPECT_FALSE(response.at("store").as_bool());
  EXPECT_EQ(server.call("GET", "/v1/responses/" + str(response.at("id"))).status, 404);
}

TEST(Responses, StoreTrueIsTheDefaultAndAPathMayEndInASlash) {
  TestServer server(chat_options("one two"));
  const json::object response =
      whole_response(server, response_body(R"("store":true,"service_tier":"auto","max_output_tokens":2)"));
  EXPECT_TRUE(response.at("store").as_bool());
  EXPECT_EQ(server.call("GET", "/v1/responses/" + str(response.at("id")) + "/").status, 200);
}

TEST(Responses, WithoutRoomForAnyNothingIsStored) {
  testing::TestServerOptions options = chat_options("one two");
  options.server.response_store_bytes = 0;
  TestServer server(options);
  const json::object response = whole_response(server, response_body(R"("max_output_tokens":2)"));
  EXPECT_FALSE(response.at("store").as_bool());
  EXPECT_EQ(server.call("GET", "/v1/responses/" + str(response.at("id"))).status, 404);
}

TEST(Responses, OneKeyNeitherReadsNorContinuesNorDeletesAnothers) {
  testing::TestServerOptions options = chat_options("one two");
  options.server.keys =
      std::make_shared<const KeyRing>(std::vector<ApiKey>{{"alice", "a"}, {"bob", "b"}}, "root");
  TestServer server(options);
  const HeaderList alice = {{"authorization", "Bearer a"}};
  const HeaderList bob = {{"x-api-key", "b"}};
  const std::string id =
      str(whole_response(server, response_body(R"("max_output_tokens":2)"), alice).at("id"));
  const std::string path = "/v1/responses/" + id;
  EXPECT_EQ(server.call("GET", path, {}, bob).status, 404);
  EXPECT_EQ(server.call("DELETE", path, {}, bob).status, 404);
  const std::string next = R"({"input":"More","max_output_tokens":2,"previous_response_id":")" + id + R"("})";
  EXPECT_EQ(server.call("POST", "/v1/responses", next, bob).status, 400);
  EXPECT_EQ(server.call("POST", "/v1/responses", next, alice).status, 200);
  EXPECT_EQ(server.call("GET", path, {}, alice).status, 200);
}

TEST(Responses, OnlyAStoredResponseCanBeAskedToBeCancelled) {
  TestServer server(chat_options("one two"));
  const std::string id = str(whole_response(server, response_body(R"("max_output_tokens":2)")).at("id"));
  EXPECT_EQ(server.call("POST", "/v1/responses/" + id + "/cancel").status, 400);
  EXPECT_EQ(server.call("POST", "/v1/responses/resp_0/cancel").status, 404);
  EXPECT_EQ(server.call("GET", "/v1/responses/" + id + "/input_items").status, 404);
}

TEST(Responses, ItemsBecomeMessagesOfChat) {
  const json::value body = json::parse(R"({"input":[{"role":"developer","content":"Be brief."},
    {"role":"user","content":[{"type":"input_text","text":"Add"},{"type":"input_text","text":"them."}]},
    {"type":"reasoning","id":"rs","summary":[{"type":"summary_text","text":"s"}],
     "content":[{"type":"reasoning_text","text":"Hm."}]},
    {"type":"message","role":"assistant","content":[{"type":"output_text","text":"Well."}]},
    {"type":"function_call","call_id":"c1","name":"add","arguments":"{\"a\":1}"},
    {"type":"function_call","call_id":"c2","name":"add","arguments":""},
    {"type":"function_call_output","call_id":"c1","output":"one"},
    {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"two"}]},
    {"role":"assistant","content":"Three."},{"role":"assistant","content":"Really."},
    {"role":"user","content":"Why?"}]})");
  FieldReader reader(body.as_object());
  ChatMessages messages;
  read_responses_input(reader, messages);
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
            "input[0] developer [][Be brief.]\n"
            "input[1] user [][Add\nthem.]\n"
            "input[2] assistant [Hm.][Well.]c1add{\"a\":1}c2add{}\n"
            "input[6] tool c1[][one]\n"
            "input[7] tool c2[][two]\n"
            "input[8] assistant [][Three.]\n"
            "input[9] assistant [][Really.]\n"
            "input[10] user [][Why?]\n");
}

TEST(Responses, ErrorsNameTheFieldInTheWordsOfThisApi) {
  TestServer server(chat_options("x"));
  const auto input = [](std::string_view list) { return R"({"input":[)" + std::string(list) + "]}"; };
  const struct {
    std::string body, error;
  } cases[] = {
      {"{}", "input: is missing; must be a string or a list of items"},
      {input(""), "input: is empty; must be one item or more"},
      {input(R"({"type":"item_reference","id":"x"})"),
       "input[0].type is \"item_reference\"; must be message, function_call, function_call_output or "
       "reasoning"},
      {input(R"({"role":"user","content":[{"type":"input_image","image_url":"x"}]})"),
       "input[0].content[0].type is \"input_image\"; must be input_text or output_text: the models read "
       "text only"},
      {input(R"({"type":"function_call","name":"add"})"), "input[0].call_id: is missing; must be a string"},
      {response_body(R"("tools":[{"type":"web_search"}])"),
       "tools[0].type is \"web_search\"; must be function: the server has no tools of its own"},
      {response_body(std::string(kResponsesTools) + R"(,"tool_choice":{"type":"function","name":"sub"})"),
       "tool_choice.name: names \"sub\", which is not among the tools"},
      {response_body(R"("tool_choice":"required")"), "tool_choice: is \"required\", but there are no tools"},
      {response_body(R"("background":true)"),
       "background: is not supported: a request runs while its client waits for it"},
      {response_body(R"("conversation":"c")"), "conversation: is not supported: use previous_response_id"},
      {response_body(R"("truncation":"auto")"),
       "truncation is \"auto\"; must be disabled: a conversation is not shortened"},
      {response_body(R"("top_logprobs":3)"),
       "top_logprobs is 3; must be an integer in [0, 0] (/v1/chat/completions has log-probabilities)"},
      {response_body(R"("include":["file_search_call.results"])"),
       "include: has \"file_search_call.results\"; must be [\"reasoning.encrypted_content\"]"},
      {response_body(R"("metadata":{"a":1})"),
       "metadata is {\"a\":1}; must be an object of at most 16 strings of 512 bytes, with names of 64"},
      {response_body(R"("text":{"format":{"type":"xml"}})"),
       "text.format.type is \"xml\"; must be text, json_object or json_schema"},
      {response_body(R"("max_output_tokens":9000)"),
       "max_output_tokens: 9005 tokens are requested, 5 of the prompt and 9000 of the answer; at most 4096 "
       "are "
       "allowed: the context length of the model"},
      {response_body(R"("rid":"mine")"),
       "rid: is not supported: the server chooses the id of a response; /abort_request accepts that id"},
  };
  for (const auto& one : cases) {
    const HttpResponse response = server.call("POST", "/v1/responses", one.body);
    EXPECT_EQ(response.status, 400) << one.body;
    EXPECT_EQ(response_error(response), one.error);
  }
}

TEST(Responses, TheFieldsThatAResponseRepeatsHaveOneMebibyteAtMost) {
  TestServer server(chat_options("one two"));
  const auto answer = [&](size_t bytes) {
    const std::string schema(bytes, 'y');
    return server.call(
        "POST", "/v1/responses",
        response_body(
            fmt::format(R"("text":{{"format":{{"type":"text"}},"x":"{}"}},"metadata":{{"a":"b"}})", schema)));
  };
  const HttpResponse large = answer(size_t{1} << 20);
  EXPECT_EQ(large.status, 400);
  EXPECT_TRUE(response_error(large).starts_with("text: makes the fields that a response repeats 104"))
      << response_error(large);
  const HttpResponse smaller = answer((size_t{1} << 20) - 1024);
  EXPECT_EQ(smaller.status, 200) << cut_text(smaller.body, 200);
}

TEST(Responses, AnErrorOfTheModelsFormatNamesTheClientsItem) {
  testing::TestServerOptions options = chat_options("x");
  options.chat_format = ChatFormat::kV32;
  TestServer server(options);
  const std::string error =
      response_error(server.call("POST", "/v1/responses",
                                 R"({"instructions":"Be brief.","input":[{"role":"user","content":"a"},)"
                                 R"({"type":"function_call_output","call_id":"c","output":"x"}]})"));
  EXPECT_TRUE(error.starts_with("input[1]")) << error;
}

TEST(Responses, AnAbortMakesItIncomplete) {
  TestServer server(chat_options("one two three four"));
  server.gate().allow(2);
  const auto exchange =
      server.send("POST", "/v1/responses", response_body(R"("ignore_eos":true,"stream":true)"));
  ASSERT_TRUE(server.io().run_until([&] { return exchange->num_writes > 0; }));
  const size_t at = exchange->response.body.find("resp_");
  const std::string id = exchange->response.body.substr(at, 37);
  EXPECT_EQ(server.call("POST", "/abort_request", R"({"rid":")" + id + R"("})").status, 200);
  server.gate().open();
  ASSERT_TRUE(server.wait(*exchange));
  const json::value last = response_events(exchange->response.body).back();
  EXPECT_EQ(str(last.at("type")), "response.incomplete");
  EXPECT_EQ(str(last.at("response").at("incomplete_details").at("reason")), "abort");
}

}  // namespace
}  // namespace hadal::server
