// Tests the answers of /v1/chat/completions over an engine that generates a script's tokens: forms, streams,
// reasoning, tools, logprobs and clients that go away.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include <boost/json.hpp>

#include "tests/server/dialect_fixture.h"

namespace hadal::server {
namespace {

using testing::answering;
using testing::chat_body;
using testing::events_of;
using testing::kCalls;
using testing::parsed;
using testing::str;
using testing::TestServer;
namespace json = boost::json;

int64_t prompt_tokens_of(const std::string& body, ChatFormat format) {
  TestServer server(answering(1, "x", format));
  return testing::chat_prompt_tokens(server, body);
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

// Returns the same message, joined from a stream; checks the form of every event.
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

// Returns a usage without the fields that depend on earlier requests, because the streamed answer finds its
// prompt cached.
json::object without_cache(const json::value& usage) {
  json::object out = usage.as_object();
  out.erase("prompt_cache_hit_tokens");
  out.erase("prompt_cache_miss_tokens");
  return out;
}

// Checks that both forms have the same content, and returns it.
Message ask_chat(const std::string& body, std::string_view text, ChatFormat format = ChatFormat::kV31) {
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
  const Message message = ask_chat(chat_body(), "Hello, wörld! 🦊 Good day.");
  EXPECT_EQ(message.content, "Hello, wörld! 🦊 Good day.");
  EXPECT_EQ(message.reasoning, "");
  EXPECT_EQ(message.finish, "stop");
  EXPECT_EQ(message.usage.at("total_tokens").to_number<int64_t>(),
            message.usage.at("prompt_tokens").to_number<int64_t>() +
                message.usage.at("completion_tokens").to_number<int64_t>());
}

TEST(OpenAiChat, StopsAtTheLengthAndAtStopStrings) {
  EXPECT_EQ(ask_chat(chat_body(R"("max_tokens":2)"), "one two three four").finish, "length");
  const Message stopped = ask_chat(chat_body(R"("stop":["thr"])"), "one two three four");
  EXPECT_EQ(stopped.content, "one two ");
  EXPECT_EQ(stopped.finish, "stop");
}

TEST(OpenAiChat, ReasoningIsSeparatedAndCounted) {
  const std::string thinking = R"("chat_template_kwargs":{"thinking":true})";
  const std::string text = "Let me see.</think>It is 4.";
  const Message message = ask_chat(chat_body(thinking), text);
  EXPECT_EQ(message.reasoning, "Let me see.");
  EXPECT_EQ(message.content, "It is 4.");
  TestServer tokens;
  EXPECT_EQ(message.usage.at("reasoning_tokens").to_number<size_t>(),
            tokens.tokenizer().encode("Let me see.</think>", false).size());
  const Message whole = ask_chat(chat_body(thinking + R"(,"separate_reasoning":false)"), text);
  EXPECT_EQ(whole.content, text);
  EXPECT_EQ(whole.reasoning, "");
  const Message late = ask_chat(chat_body(thinking + R"(,"stream_reasoning":false)"), text);
  EXPECT_EQ(late.reasoning, "Let me see.");
}

TEST(OpenAiChat, ReasoningEffortTurnsThinkingOnAndOff) {
  const std::string text = "Hm.</think>Yes.";
  EXPECT_EQ(ask_chat(chat_body(R"("reasoning_effort":"low")"), text).reasoning, "Hm.");
  EXPECT_EQ(ask_chat(chat_body(R"("reasoning_effort":"none")"), text).reasoning, "");
  EXPECT_EQ(ask_chat(chat_body(R"("reasoning_effort":"none","chat_template_kwargs":{"thinking":true})"), text)
                .reasoning,
            "Hm.");
  EXPECT_EQ(
      ask_chat(chat_body(R"("reasoning_effort":"high","chat_template_kwargs":{"thinking":false})"), text)
          .reasoning,
      "");
}

TEST(OpenAiChat, ReasoningOfR1BeginsWithoutATag) {
  const Message message = ask_chat(chat_body(), "Hm.</think>Yes.", ChatFormat::kR1);
  EXPECT_EQ(message.reasoning, "Hm.");
  EXPECT_EQ(message.content, "Yes.");
}

TEST(OpenAiChat, ToolCallsAreFoundAndStreamed) {
  const std::string tools(testing::kChatTools);
  const Message message = ask_chat(chat_body(tools), "I add." + std::string(kCalls));
  EXPECT_EQ(message.content, "I add.");
  EXPECT_EQ(message.calls, (std::vector<std::string>{"add {\"a\": 1}", "add {\"a\": 2}"}));
  EXPECT_EQ(message.finish, "tool_calls");
  const Message one = ask_chat(chat_body(tools + R"(,"parallel_tool_calls":false)"), kCalls);
  EXPECT_EQ(one.calls.size(), 1U);
  // If the request has no tools, the text stays text, without the markers, which are special tokens.
  EXPECT_TRUE(ask_chat(chat_body(tools + R"(,"tool_choice":"none")"), kCalls).calls.empty());
  const Message none = ask_chat(chat_body(tools), "No call.");
  EXPECT_EQ(none.finish, "stop");
  EXPECT_EQ(none.content, "No call.");
}

TEST(OpenAiChat, ArgumentsStreamAsTheyAreMade) {
  const std::string body = chat_body(testing::kChatTools);
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
  const Message message =
      ask_chat(chat_body(fmt::format(R"({},"max_tokens":4)", testing::kChatTools)), kCalls);
  EXPECT_EQ(message.finish, "length");
  EXPECT_TRUE(message.calls.empty());
  EXPECT_EQ(message.content, "add");
}

TEST(OpenAiChat, ACallThatIsCutOffAfterItsNameEndsWithWhatWasSent) {
  const std::string whole = "add {\"a\": 1}";
  for (int max_tokens = 6; max_tokens < 9; ++max_tokens) {
    const Message message = ask_chat(
        chat_body(std::string(testing::kChatTools) + fmt::format(R"(,"max_tokens":{})", max_tokens)), kCalls);
    EXPECT_EQ(message.finish, "length");
    EXPECT_EQ(message.content, "");
    ASSERT_EQ(message.calls.size(), 1U);
    EXPECT_TRUE(whole.starts_with(message.calls[0]) && message.calls[0].size() > 4) << message.calls[0];
  }
}

TEST(OpenAiChat, ACallWhoseArgumentsBreakIsNoneToExecute) {
  const Message message = ask_chat(chat_body(testing::kChatTools),
                                   "<｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": oops}<｜tool▁call▁end｜>");
  EXPECT_EQ(message.finish, "stop");
  EXPECT_EQ(message.calls, std::vector<std::string>{"add {\"a\": "});
  EXPECT_EQ(message.content, "oops}<｜tool▁call▁end｜>");
}

TEST(OpenAiChat, ACallAloneHasNullContent) {
  const std::string body = chat_body(testing::kChatTools);
  TestServer server(answering(prompt_tokens_of(body, ChatFormat::kV31), kCalls));
  const json::value answer = parsed(server.call("POST", "/v1/chat/completions", body));
  EXPECT_TRUE(answer.at("choices").at(0).at("message").at("content").is_null());
}

TEST(OpenAiChat, LogprobsCoverEveryTokenWithItsBytes) {
  const Message message = ask_chat(chat_body(R"("logprobs":true,"top_logprobs":2)"), "naïve 🦊");
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
  TestServer server(answering(prompt_tokens_of(chat_body(rest), ChatFormat::kV31), "a b c d e"));
  const json::value whole = parsed(server.call("POST", "/v1/chat/completions", chat_body(rest)));
  const json::value& expected = whole.at("choices").at(0).at("logprobs").at("content");
  ASSERT_EQ(expected.as_array().size(), 300U);
  const auto exchange = server.send("POST", "/v1/chat/completions", chat_body(rest + R"(,"stream":true)"));
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
  const std::string body = chat_body(R"("n":3,"max_tokens":3)");
  TestServer server(answering(prompt_tokens_of(body, ChatFormat::kV31), "a b c d e"));
  const json::value whole = parsed(server.call("POST", "/v1/chat/completions", body));
  ASSERT_EQ(whole.at("choices").as_array().size(), 3U);
  EXPECT_EQ(whole.at("usage").at("completion_tokens").to_number<int64_t>(), 9);
  EXPECT_EQ(whole.at("usage").at("prompt_tokens").to_number<int64_t>(),
            prompt_tokens_of(body, ChatFormat::kV31));
  std::map<int64_t, std::string> texts;
  const HttpResponse stream =
      server.call("POST", "/v1/chat/completions", chat_body(R"("n":3,"max_tokens":3,"stream":true)"));
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

TEST(OpenAiChat, AClientThatLeavesEndsItsRequest) {
  for (const bool stream : {true, false}) {
    TestServer server(answering(1, "a b c d e f g"));
    server.gate().allow(8);  // the engine cannot end before the client leaves
    const auto exchange =
        server.send("POST", "/v1/chat/completions",
                    chat_body(std::string(R"("n":2,"ignore_eos":true,"max_tokens":4000,"stream":)") +
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
