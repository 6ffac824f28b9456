// Tests /v1/chat/completions over an engine that generates a script's tokens: forms, streams, reasoning,
// tools, logprobs, errors and clients that go away.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include <boost/json.hpp>

#include "tests/server/test_server.h"
#include "text/chat/chat_template.h"

namespace hadal::server {
namespace {

using testing::events_of;
using testing::parsed;
using testing::TestServer;
namespace json = boost::json;

constexpr std::string_view kFiller = "<｜User｜>";
constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
constexpr std::string_view kCall =
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"
    "<｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
constexpr std::string_view kTools =
    R"("tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object","properties":{}}}}])";

std::string str(const json::value& value) {
  return std::string(value.as_string());
}

// Starts a server whose model answers `text` to a prompt of `prompt_tokens` tokens and then ends.
testing::TestServerOptions answering(int64_t prompt_tokens, std::string_view text,
                                     ChatFormat format = ChatFormat::kV31) {
  testing::TestServerOptions options;
  options.chat_format = format;
  options.server.reasoning_parser = format == ChatFormat::kR1 ? "deepseek-r1" : "deepseek-v3";
  options.server.tool_call_parser = format == ChatFormat::kV31 ? "deepseekv31" : "deepseekv3";
  options.script.clear();
  for (int64_t i = 1; i < prompt_tokens; ++i) options.script += kFiller;
  options.script += text;
  options.script += kEos;
  return options;
}

// This is the prompt of "Hi" in V3.1's format, <bos><User>Hi<Assistant></think>; a server is asked for its
// length first.
std::string body_of(std::string_view more) {
  std::string body = R"({"messages":[{"role":"user","content":"Hi"}])";
  if (!more.empty()) body += ",";
  return body + std::string(more) + "}";
}

int64_t prompt_tokens_of(const std::string& body, ChatFormat format) {
  TestServer server(answering(1, "x", format));
  const HttpResponse response = server.call("POST", "/v1/chat/completions", body);
  EXPECT_EQ(response.status, 200) << response.body;
  return parsed(response).at("usage").at("prompt_tokens").to_number<int64_t>();
}

struct Message {
  std::string content, reasoning, finish;
  std::vector<std::string> calls;  // "name arguments"
  int num_events = 0, num_call_deltas = 0;
  json::array logprobs;
  json::value usage;
};

Message whole_answer(TestServer& server, const std::string& body) {
  const HttpResponse response = server.call("POST", "/v1/chat/completions", body);
  EXPECT_EQ(response.status, 200) << response.body;
  const json::value answer = parsed(response);
  EXPECT_EQ(str(answer.at("object")), "chat.completion");
  const json::value& choice = answer.at("choices").at(0);
  const json::value& message = choice.at("message");
  EXPECT_EQ(str(message.at("role")), "assistant");
  Message out;
  if (message.at("content").is_string()) out.content = str(message.at("content"));
  if (message.at("reasoning_content").is_string()) out.reasoning = str(message.at("reasoning_content"));
  if (message.at("tool_calls").is_array()) {
    for (const json::value& call : message.at("tool_calls").as_array()) {
      EXPECT_TRUE(str(call.at("id")).starts_with("call_"));
      out.calls.push_back(str(call.at("function").at("name")) + " " +
                          str(call.at("function").at("arguments")));
    }
  }
  if (choice.at("logprobs").is_object()) out.logprobs = choice.at("logprobs").at("content").as_array();
  out.finish = str(choice.at("finish_reason"));
  out.usage = answer.at("usage");
  return out;
}

// Returns the same, joined from a stream; checks the form of every event.
Message streamed_answer(TestServer& server, std::string body) {
  body.insert(1, R"("stream":true,"stream_options":{"include_usage":true},)");
  const HttpResponse response = server.call("POST", "/v1/chat/completions", body);
  EXPECT_EQ(response.status, 200) << response.body;
  Message out;
  std::string id;
  for (const json::object& event : events_of(response.body)) {
    EXPECT_EQ(str(event.at("object")), "chat.completion.chunk");
    if (id.empty()) id = str(event.at("id"));
    EXPECT_EQ(str(event.at("id")), id);
    const json::array& choices = event.at("choices").as_array();
    if (choices.empty()) {
      EXPECT_TRUE(out.usage.is_null()) << "two usages";
      out.usage = event.at("usage");
      continue;
    }
    EXPECT_TRUE(event.at("usage").is_null());
    EXPECT_EQ(out.finish, "") << "something after the end";
    const json::value& choice = choices[0];
    const json::value& delta = choice.at("delta");
    if (out.num_events++ == 0) {
      EXPECT_EQ(str(delta.at("role")), "assistant");
      EXPECT_EQ(str(delta.at("content")), "");
    }
    if (delta.at("content").is_string()) out.content += str(delta.at("content"));
    if (delta.at("reasoning_content").is_string()) {
      EXPECT_EQ(out.content, "") << "reasoning after content";
      out.reasoning += str(delta.at("reasoning_content"));
    }
    if (delta.at("tool_calls").is_array()) {
      for (const json::value& call : delta.at("tool_calls").as_array()) {
        const json::object& function = call.at("function").as_object();
        if (function.contains("name")) {
          EXPECT_TRUE(call.at("id").is_string() && call.at("type") == "function") << call;
          out.calls.push_back(str(function.at("name")) + " ");
        } else {
          EXPECT_EQ(call.as_object().size(), 2U) << "later deltas have an index and a function: " << call;
          EXPECT_EQ(function.size(), 1U) << call;
        }
        EXPECT_EQ(call.at("index").to_number<size_t>() + 1, out.calls.size());
        out.calls.back() += str(function.at("arguments"));
        ++out.num_call_deltas;
      }
    }
    if (choice.at("logprobs").is_object()) {
      for (const json::value& entry : choice.at("logprobs").at("content").as_array()) {
        out.logprobs.push_back(entry);
      }
    }
    if (choice.at("finish_reason").is_string()) out.finish = str(choice.at("finish_reason"));
  }
  return out;
}

// Returns a usage without what depends on the requests before: the streamed answer finds its prompt cached.
json::object without_cache(const json::value& usage) {
  json::object out = usage.as_object();
  out.erase("prompt_cache_hit_tokens");
  out.erase("prompt_cache_miss_tokens");
  return out;
}

// Checks that both forms have the same content, and returns it.
Message ask(const std::string& body, std::string_view text, ChatFormat format = ChatFormat::kV31) {
  TestServer server(answering(prompt_tokens_of(body, format), text, format));
  Message whole = whole_answer(server, body);
  const Message streamed = streamed_answer(server, body);
  EXPECT_EQ(streamed.content, whole.content);
  EXPECT_EQ(streamed.reasoning, whole.reasoning);
  EXPECT_EQ(streamed.calls, whole.calls);
  EXPECT_EQ(streamed.finish, whole.finish);
  EXPECT_EQ(streamed.logprobs, whole.logprobs);
  EXPECT_EQ(without_cache(streamed.usage), without_cache(whole.usage));
  EXPECT_GE(streamed.num_events, 2);
  return whole;
}

TEST(OpenAiChat, AnswersAndStreamsTheSameText) {
  const Message message = ask(body_of(""), "Hello, wörld! 🦊 Good day.");
  EXPECT_EQ(message.content, "Hello, wörld! 🦊 Good day.");
  EXPECT_EQ(message.reasoning, "");
  EXPECT_EQ(message.finish, "stop");
  EXPECT_EQ(message.usage.at("total_tokens").to_number<int64_t>(),
            message.usage.at("prompt_tokens").to_number<int64_t>() +
                message.usage.at("completion_tokens").to_number<int64_t>());
}

TEST(OpenAiChat, StopsAtTheLengthAndAtStopStrings) {
  EXPECT_EQ(ask(body_of(R"("max_tokens":2)"), "one two three four").finish, "length");
  const Message stopped = ask(body_of(R"("stop":["thr"])"), "one two three four");
  EXPECT_EQ(stopped.content, "one two ");
  EXPECT_EQ(stopped.finish, "stop");
}

TEST(OpenAiChat, ReasoningIsSeparatedAndCounted) {
  const std::string thinking = R"("chat_template_kwargs":{"thinking":true})";
  const std::string text = "Let me see.</think>It is 4.";
  const Message message = ask(body_of(thinking), text);
  EXPECT_EQ(message.reasoning, "Let me see.");
  EXPECT_EQ(message.content, "It is 4.");
  TestServer tokens;
  EXPECT_EQ(message.usage.at("reasoning_tokens").to_number<size_t>(),
            tokens.tokenizer().encode("Let me see.</think>", false).size());
  const Message whole = ask(body_of(thinking + R"(,"separate_reasoning":false)"), text);
  EXPECT_EQ(whole.content, text);
  EXPECT_EQ(whole.reasoning, "");
  const Message late = ask(body_of(thinking + R"(,"stream_reasoning":false)"), text);
  EXPECT_EQ(late.reasoning, "Let me see.");
}

TEST(OpenAiChat, ReasoningEffortTurnsThinkingOnAndOff) {
  const std::string text = "Hm.</think>Yes.";
  EXPECT_EQ(ask(body_of(R"("reasoning_effort":"low")"), text).reasoning, "Hm.");
  EXPECT_EQ(ask(body_of(R"("reasoning_effort":"none")"), text).reasoning, "");
  EXPECT_EQ(
      ask(body_of(R"("reasoning_effort":"none","chat_template_kwargs":{"thinking":true})"), text).reasoning,
      "Hm.");
  EXPECT_EQ(
      ask(body_of(R"("reasoning_effort":"high","chat_template_kwargs":{"thinking":false})"), text).reasoning,
      "");
}

TEST(OpenAiChat, ReasoningOfR1BeginsWithoutATag) {
  const Message message = ask(body_of(""), "Hm.</think>Yes.", ChatFormat::kR1);
  EXPECT_EQ(message.reasoning, "Hm.");
  EXPECT_EQ(message.content, "Yes.");
}

TEST(OpenAiChat, ToolCallsAreFoundAndStreamed) {
  const std::string tools(kTools);
  const Message message = ask(body_of(tools), "I add." + std::string(kCall));
  EXPECT_EQ(message.content, "I add.");
  EXPECT_EQ(message.calls, (std::vector<std::string>{"add {\"a\": 1}", "add {\"a\": 2}"}));
  EXPECT_EQ(message.finish, "tool_calls");
  const Message one = ask(body_of(tools + R"(,"parallel_tool_calls":false)"), kCall);
  EXPECT_EQ(one.calls.size(), 1U);
  // Without tools in the request the text stays text, without the markers, which are special tokens.
  EXPECT_TRUE(ask(body_of(tools + R"(,"tool_choice":"none")"), kCall).calls.empty());
  const Message none = ask(body_of(tools), "No call.");
  EXPECT_EQ(none.finish, "stop");
  EXPECT_EQ(none.content, "No call.");
}

TEST(OpenAiChat, ArgumentsStreamAsTheyAreMade) {
  const std::string body = body_of(kTools);
  const std::string call =
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"words\": \"one two three four five "
      "six\"}"
      "<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
  TestServer server(answering(prompt_tokens_of(body, ChatFormat::kV31), call));
  const Message streamed = streamed_answer(server, body);
  EXPECT_EQ(streamed.calls, std::vector<std::string>{"add {\"words\": \"one two three four five six\"}"});
  EXPECT_GT(streamed.num_call_deltas, 6) << "the words came in one lump";
}

TEST(OpenAiChat, ACallThatIsCutOffBeforeItsNameIsContentWithoutMarkers) {
  const Message message = ask(body_of(std::string(kTools) + R"(,"max_tokens":4)"), kCall);
  EXPECT_EQ(message.finish, "length");
  EXPECT_TRUE(message.calls.empty());
  EXPECT_EQ(message.content, "add");
}

TEST(OpenAiChat, ACallThatIsCutOffAfterItsNameEndsWithWhatWasSent) {
  const std::string whole = "add {\"a\": 1}";
  for (int max_tokens = 6; max_tokens < 9; ++max_tokens) {
    const Message message =
        ask(body_of(std::string(kTools) + fmt::format(R"(,"max_tokens":{})", max_tokens)), kCall);
    EXPECT_EQ(message.finish, "length");
    EXPECT_EQ(message.content, "");
    ASSERT_EQ(message.calls.size(), 1U);
    EXPECT_TRUE(whole.starts_with(message.calls[0]) && message.calls[0].size() > 4) << message.calls[0];
  }
}

TEST(OpenAiChat, ACallWhoseArgumentsBreakIsNoneToExecute) {
  const Message message =
      ask(body_of(kTools), "<｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": oops}<｜tool▁call▁end｜>");
  EXPECT_EQ(message.finish, "stop");
  EXPECT_EQ(message.calls, std::vector<std::string>{"add {\"a\": "});
  EXPECT_EQ(message.content, "oops}<｜tool▁call▁end｜>");
}

TEST(OpenAiChat, ACallAloneHasNullContent) {
  const std::string body = body_of(kTools);
  TestServer server(answering(prompt_tokens_of(body, ChatFormat::kV31), kCall));
  const json::value answer = parsed(server.call("POST", "/v1/chat/completions", body));
  EXPECT_TRUE(answer.at("choices").at(0).at("message").at("content").is_null());
}

TEST(OpenAiChat, LogprobsCoverEveryTokenWithItsBytes) {
  const Message message = ask(body_of(R"("logprobs":true,"top_logprobs":2)"), "naïve 🦊");
  std::string bytes;
  ASSERT_EQ(message.logprobs.size(), message.usage.at("completion_tokens").to_number<size_t>());
  for (size_t i = 0; i + 1 < message.logprobs.size(); ++i) {  // the last one ends the answer
    const json::value& entry = message.logprobs[i];
    EXPECT_EQ(entry.at("logprob").to_number<double>(), -0.5);
    EXPECT_EQ(entry.at("top_logprobs").as_array().size(), 2U);
    for (const json::value& byte : entry.at("bytes").as_array()) {
      bytes += static_cast<char>(byte.to_number<int>());
    }
  }
  EXPECT_EQ(bytes, "naïve 🦊");
}

// The answers have more log-probabilities than one task turns into JSON (server/generation/delta_pieces.h).
TEST(OpenAiChat, AnswersMadeInManyTasksAreComplete) {
  const std::string rest = R"("logprobs":true,"top_logprobs":20,"max_tokens":300,"ignore_eos":true)";
  TestServer server(answering(prompt_tokens_of(body_of(rest), ChatFormat::kV31), "a b c d e"));
  const json::value whole = parsed(server.call("POST", "/v1/chat/completions", body_of(rest)));
  const json::value& expected = whole.at("choices").at(0).at("logprobs").at("content");
  ASSERT_EQ(expected.as_array().size(), 300U);
  const auto exchange = server.send("POST", "/v1/chat/completions", body_of(rest + R"(,"stream":true)"));
  exchange->is_writable = false;  // so that what is written later has many log-probabilities
  ASSERT_TRUE(server.io().run_until([&] { return server.engine().stats().generation_tokens == 600; }));
  ASSERT_TRUE(server.io().run_until([&] { return server.engine().stats().scheduler.num_running == 0; }));
  exchange->read_again();
  ASSERT_TRUE(server.wait(*exchange));
  json::array streamed;
  std::string text;
  for (const json::object& event : events_of(exchange->response.body)) {
    const json::value& choice = event.at("choices").at(0);
    if (choice.at("delta").at("content").is_string()) text += str(choice.at("delta").at("content"));
    if (!choice.at("logprobs").is_object()) continue;
    for (const json::value& entry : choice.at("logprobs").at("content").as_array()) streamed.push_back(entry);
  }
  EXPECT_EQ(streamed, expected.as_array());
  EXPECT_EQ(text, str(whole.at("choices").at(0).at("message").at("content")));
}

TEST(OpenAiChat, ChoicesHaveTheirIndexInStreams) {
  const std::string body = body_of(R"("n":3,"max_tokens":3)");
  TestServer server(answering(prompt_tokens_of(body, ChatFormat::kV31), "a b c d e"));
  const json::value whole = parsed(server.call("POST", "/v1/chat/completions", body));
  ASSERT_EQ(whole.at("choices").as_array().size(), 3U);
  EXPECT_EQ(whole.at("usage").at("completion_tokens").to_number<int64_t>(), 9);
  EXPECT_EQ(whole.at("usage").at("prompt_tokens").to_number<int64_t>(),
            prompt_tokens_of(body, ChatFormat::kV31));
  std::map<int64_t, std::string> texts;
  const HttpResponse stream =
      server.call("POST", "/v1/chat/completions", body_of(R"("n":3,"max_tokens":3,"stream":true)"));
  for (const json::object& event : events_of(stream.body)) {
    EXPECT_FALSE(event.contains("usage"));
    const json::value& choice = event.at("choices").at(0);
    if (choice.at("delta").at("content").is_string()) {
      texts[choice.at("index").to_number<int64_t>()] += str(choice.at("delta").at("content"));
    }
  }
  ASSERT_EQ(texts.size(), 3U);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(texts[i], str(whole.at("choices").at(static_cast<size_t>(i)).at("message").at("content")));
  }
}

TEST(OpenAiChat, ContentPartsHistoryAndAContinuedMessageAreAccepted) {
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

TEST(OpenAiChat, ErrorsNameTheFieldInOpenAisShape) {
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
      {R"("max_tokens":0)", "max_tokens", "0"},
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
      {R"("guided_regex":"a")", "guided_regex", "use regex"},
      {R"("guided_choice":["a"])", "guided_choice", "use regex"},
      {R"("guided_grammar":"root ::= a")", "guided_grammar", "use ebnf"},
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
    const std::string body = one.body.starts_with("{") ? std::string(one.body) : body_of(one.body);
    const HttpResponse response = server.call("POST", "/v1/chat/completions", body);
    EXPECT_EQ(response.status, 400) << body;
    const json::value answer = parsed(response);
    const json::value& error = answer.at("error");
    EXPECT_EQ(error.at("param"), json::value(one.param)) << response.body;
    EXPECT_NE(str(error.at("message")).find(one.text), std::string::npos) << response.body;
    EXPECT_EQ(str(error.at("type")), "invalid_request_error");
  }
  const HttpResponse named = server.call(
      "POST", "/v1/chat/completions",
      body_of(std::string(kTools) + R"(,"tool_choice":{"type":"function","function":{"name":"b"}})"));
  EXPECT_EQ(named.status, 400);
  EXPECT_EQ(str(parsed(named).at("error").at("param")), "tool_choice");
}

TEST(OpenAiChat, UnknownFieldsAndModelsAreAccepted) {
  const std::string body = body_of(
      R"("model":"any","max_tokens":2,"user":"u","metadata":{"a":"b"},"store":false,"service_tier":"auto","nonsense":[1],
         "chat_template_kwargs":{"other":1},"reasoning_effort":"high","logit_bias":{"5":-100},"rid":"my-id")");
  TestServer server(answering(1, "x"));
  const HttpResponse response = server.call("POST", "/v1/chat/completions", body);
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(str(parsed(response).at("model")), "any");
  EXPECT_EQ(str(parsed(response).at("id")), "my-id");
}

TEST(OpenAiChat, AModelWithoutATemplateIsAClearError) {
  TestServer server;
  const HttpResponse response = server.call("POST", "/v1/chat/completions", body_of(""));
  EXPECT_EQ(response.status, 400);
  EXPECT_NE(response.body.find("chat template"), std::string::npos);
}

TEST(OpenAiChat, AClientThatLeavesEndsItsRequest) {
  for (const bool stream : {true, false}) {
    TestServer server(answering(1, "a b c d e f g"));
    server.gate().allow(8);  // the engine cannot end before the client leaves
    const auto exchange =
        server.send("POST", "/v1/chat/completions",
                    body_of(std::string(R"("n":2,"ignore_eos":true,"max_tokens":4000,"stream":)") +
                            (stream ? "true" : "false")));
    if (stream) {
      EXPECT_TRUE(server.io().run_until([&] { return exchange->num_writes > 2; }));
    }
    exchange->disconnect();
    server.gate().open();
    EXPECT_TRUE(server.io().run_until([&] {
      const auto stats = server.engine().stats();
      return stats.scheduler.num_running + stats.scheduler.num_queued == 0;
    }));
    EXPECT_LT(server.engine().stats().generation_tokens, 8000);
  }
}

}  // namespace
}  // namespace hadal::server
