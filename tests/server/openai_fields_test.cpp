// Tests that no field of a chat or completion is dropped silently. Also tests DeepSeek's own fields and
// paths.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "tests/server/dialect_fixture.h"
#include "text/chat/chat_template.h"

namespace hadal::server {
namespace {

using testing::chat_prompt_tokens;
using testing::events_of;
using testing::kChatPath;
using testing::kQuestion;
using testing::parsed;
using testing::TestServer;
namespace json = boost::json;

constexpr const char* kCompletionsPath = "/v1/completions";

// Returns the options of a server whose model answers `text` to a prompt of `prompt_tokens` tokens and then
// ends.
testing::TestServerOptions metered_options(int64_t prompt_tokens, std::string_view text,
                                           ChatFormat format = ChatFormat::kV31) {
  testing::TestServerOptions options = testing::answering(prompt_tokens, text, format);
  options.server.tool_call_parser = "deepseekv31";
  options.server.enable_metrics = true;
  return options;
}

std::string chat_of(std::string_view messages, std::string_view more) {
  return R"({"max_tokens":4,"messages":[)" + std::string(messages) + "]" + (more.empty() ? "" : ",") +
         std::string(more) + "}";
}

std::string completion_of(std::string_view more) {
  return R"({"prompt":"a","max_tokens":2,)" + std::string(more) + "}";
}

void expect_refused(const HttpResponse& response, std::string_view field, std::string_view body) {
  EXPECT_EQ(response.status, 400) << body;
  if (response.status != 400) return;
  EXPECT_EQ(parsed(response).at("error").at("param"), json::value(field)) << response.body;
}

TEST(OpenAiFields, UnsupportedFieldsAreRefusedOnBothEndpoints) {
  TestServer server(metered_options(1, "x"));
  const struct {
    std::string_view field, body;
  } cases[] = {
      {"store", R"("store":true)"},
      {"prediction", R"("prediction":{"type":"content","content":"a"})"},
      {"web_search_options", R"("web_search_options":{})"},
      {"service_tier", R"("service_tier":"flex")"},
      {"verbosity", R"("verbosity":"low")"},
      {"prompt_cache_retention", R"("prompt_cache_retention":"24h")"},
      {"stream_options.include_obfuscation",
       R"("stream":true,"stream_options":{"include_obfuscation":true})"},
      {"lora_path", R"("lora_path":"a")"},
      {"session_params", R"("session_params":{"id":"a"})"},
      {"custom_logit_processor", R"("custom_logit_processor":"a")"},
      {"logits_processors", R"("logits_processors":["a"])"},
      {"bootstrap_port", R"("bootstrap_port":1)"},
      {"data_parallel_rank", R"("data_parallel_rank":1)"},
      {"extra_key", R"("extra_key":"a")"},
      {"return_cached_tokens_details", R"("return_cached_tokens_details":true)"},
      {"return_meta_info", R"("return_meta_info":true)"},
      {"return_token_ids", R"("return_token_ids":true)"},
      {"return_routed_experts", R"("return_routed_experts":true)"},
      {"images_config", R"("images_config":{"a":1})"},
      {"response_format.schema", R"("response_format":{"type":"json_object","schema":5})"},
  };
  for (const auto& [field, more] : cases) {
    expect_refused(server.call("POST", kChatPath, chat_of(kQuestion, more)), field, more);
    expect_refused(server.call("POST", kCompletionsPath, completion_of(more)), field, more);
  }
  for (const std::string_view field : {"prompt", "suffix"})
    expect_refused(server.call("POST", kChatPath, chat_of(kQuestion, "\"" + std::string(field) + R"(":"a")")),
                   field, field);
  for (const std::string_view more :
       {R"("messages":[{}])", R"("tools":[{}])", R"("thinking":{"type":"enabled"})"})
    expect_refused(server.call("POST", kCompletionsPath, completion_of(more)),
                   more.substr(1, more.find(':') - 2), more);
  expect_refused(
      server.call("POST", kChatPath,
                  chat_of(R"({"role":"assistant","content":"a","function_call":{"name":"f"}})", "")),
      "messages[0].function_call", "function_call");
}

TEST(OpenAiFields, ValuesThatAskForNothingAreAcceptedAndNotCounted) {
  TestServer server(metered_options(1, "x"));
  const std::string_view more =
      R"("store":false,"service_tier":"default","verbosity":"medium","prompt_cache_retention":"in_memory",
         "data_parallel_rank":0,"return_meta_info":false,"lora_path":null,"user":"u","safety_identifier":"s",
         "prompt_cache_key":"k","metadata":{"a":"b"},"prediction":null,"logits_processors":[],
         "stream_options":{"include_obfuscation":false})";
  EXPECT_EQ(server.call("POST", kChatPath, chat_of(kQuestion, more)).status, 200);
  EXPECT_EQ(server.call("POST", kCompletionsPath, completion_of(more)).status, 200);
  const std::string metrics = server.call("GET", "/metrics").body;
  const size_t at = metrics.find("\nsglang:unknown_request_fields_total{");
  ASSERT_NE(at, metrics.npos) << metrics;
  EXPECT_NE(metrics.find("} 0\n", at), metrics.npos);
}

TEST(OpenAiFields, UnknownFieldsAreIgnoredAndCounted) {
  TestServer server(metered_options(1, "x"));
  const auto count = [&] {
    const std::string metrics = server.call("GET", "/metrics").body;
    const size_t line = metrics.find("\nsglang:unknown_request_fields_total{");
    return line == metrics.npos ? -1 : std::stoi(metrics.substr(metrics.find("} ", line) + 2));
  };
  EXPECT_EQ(count(), 0);
  EXPECT_EQ(server.call("POST", kChatPath, chat_of(kQuestion, R"("nonsense":[1],"temprature":1,"none":null)"))
                .status,
            200);
  EXPECT_EQ(count(), 2);
  EXPECT_EQ(server.call("POST", kCompletionsPath, completion_of(R"("nonsense":[1])")).status, 200);
  EXPECT_EQ(count(), 3);
}

TEST(DeepSeekDialect, ThinkingIsSwitchedByItsType) {
  TestServer server(metered_options(1, "x"));
  const auto tokens = [&](std::string_view more) {
    return chat_prompt_tokens(server, chat_of(kQuestion, more));
  };
  const std::string both = R"("chat_template_kwargs":{"thinking":false},"thinking":{"type":"enabled"})";
  const std::string body = R"("thinking":{"type":"enabled"})";
  // A prompt that opens <think> makes all of the answer reasoning.
  const auto reasoning = [&](std::string_view more) {
    const std::string question = chat_of(kQuestion, more);
    TestServer thinker(metered_options(tokens(more), "Hm."));
    return parsed(thinker.call("POST", kChatPath, question))
        .at("choices")
        .at(0)
        .at("message")
        .at("reasoning_content");
  };
  EXPECT_EQ(reasoning(body), "Hm.");
  EXPECT_EQ(reasoning(R"("reasoning_effort":"none",)" + body), "Hm.");
  EXPECT_TRUE(reasoning(R"("thinking":{"type":"disabled"})").is_null());
  EXPECT_TRUE(reasoning(both).is_null()) << "chat_template_kwargs takes precedence";
  for (const auto& [field, more] :
       {std::pair{"thinking", R"("thinking":true)"}, std::pair{"thinking.type", R"("thinking":{})"},
        std::pair{"thinking.type", R"("thinking":{"type":"auto"})"},
        std::pair{"thinking.budget_tokens", R"("thinking":{"type":"enabled","budget_tokens":9})"}})
    expect_refused(server.call("POST", kChatPath, chat_of(kQuestion, more)), field, more);
  const auto message = [&](const std::string& more) {
    return std::string(parsed(server.call("POST", kChatPath, chat_of(kQuestion, more)))
                           .at("error")
                           .at("message")
                           .as_string());
  };
  EXPECT_EQ(message(R"("thinking":{"type":"enabled","budget_tokens":9})"),
            "thinking.budget_tokens is 9; must be left out: max_tokens bounds thinking and answer together");
  EXPECT_EQ(
      message(R"("best_of":2)"),
      "best_of is 2; must be left out: choices of a chat are not ranked, and n says how many there are");
}

TEST(DeepSeekDialect, ThinkingThatAFormatCannotSwitchIsRefused) {
  TestServer always(metered_options(1, "x", ChatFormat::kR1));
  expect_refused(always.call("POST", kChatPath, chat_of(kQuestion, R"("thinking":{"type":"disabled"})")),
                 "thinking.type", "r1");
  EXPECT_EQ(always.call("POST", kChatPath, chat_of(kQuestion, R"("thinking":{"type":"enabled"})")).status,
            200);
  TestServer never(metered_options(1, "x", ChatFormat::kV25));
  expect_refused(never.call("POST", kChatPath, chat_of(kQuestion, R"("thinking":{"type":"enabled"})")),
                 "thinking.type", "v2.5");
  EXPECT_EQ(never.call("POST", kChatPath, chat_of(kQuestion, R"("thinking":{"type":"disabled"})")).status,
            200);
}

TEST(DeepSeekDialect, APrefixIsContinuedOnEveryPath) {
  TestServer server(metered_options(1, "x"));
  const std::string open = std::string(kQuestion) + R"(,{"role":"assistant","content":"So")";
  const std::string prefix = chat_of(open + R"(,"prefix":true})", "");
  const int64_t continued =
      chat_prompt_tokens(server, chat_of(open + "}", R"("continue_final_message":true)"));
  EXPECT_EQ(chat_prompt_tokens(server, prefix), continued);
  EXPECT_NE(chat_prompt_tokens(server, chat_of(open + R"(,"prefix":false})", "")), continued);
  for (const char* path : {"/chat/completions", "/beta/chat/completions", "/beta/v1/chat/completions"})
    EXPECT_EQ(parsed(server.call("POST", path, prefix)).at("usage").at("prompt_tokens"), continued) << path;
  for (const char* path : {"/beta/completions", "/beta/v1/completions"})
    EXPECT_EQ(parsed(server.call("POST", path, completion_of(R"("n":1)"))).at("object"), "text_completion")
        << path;
  expect_refused(
      server.call("POST", kChatPath, chat_of(R"({"role":"user","content":"a","prefix":true})", "")),
      "messages[0].prefix", "the role is user");
  expect_refused(
      server.call("POST", kChatPath, chat_of(open + R"(,"prefix":true},)" + std::string(kQuestion), "")),
      "messages[1].prefix", "not the last");
}

TEST(DeepSeekDialect, UsageSaysWhatTheCacheHeld) {
  TestServer server(metered_options(1, "x"));
  const std::string messages = R"({"role":"user","content":")" + std::string(2000, 'a') + R"("})";
  const auto usage = [&] {
    return parsed(server.call("POST", kChatPath, chat_of(messages, ""))).at("usage");
  };
  const json::value first = usage();
  const auto prompt = first.at("prompt_tokens").to_number<int64_t>();
  EXPECT_EQ(first.at("prompt_cache_hit_tokens"), 0);
  EXPECT_EQ(first.at("prompt_cache_miss_tokens"), prompt);
  const json::value second = usage();
  const auto hit = second.at("prompt_cache_hit_tokens").to_number<int64_t>();
  EXPECT_GT(hit, 0);
  EXPECT_EQ(second.at("prompt_cache_miss_tokens"), prompt - hit);
}

TEST(ChatText, AnEndOfReasoningIsNeverContent) {
  const std::string body = R"({"messages":[{"role":"user","content":"Hi"}]})";
  TestServer asked(metered_options(1, "x"));
  const int64_t tokens = chat_prompt_tokens(asked, body);
  const auto content_of = [&](std::string_view text) {
    TestServer server(metered_options(tokens, text));
    const json::value whole =
        parsed(server.call("POST", kChatPath, body)).at("choices").at(0).at("message").at("content");
    std::string streamed;
    for (const json::object& event :
         events_of(server.call("POST", kChatPath, R"({"stream":true,)" + body.substr(1)).body)) {
      const json::value& part = event.at("choices").at(0).at("delta").at("content");
      if (part.is_string()) streamed += std::string_view(part.as_string());
    }
    EXPECT_EQ(streamed, std::string(whole.as_string()));
    return streamed;
  };
  EXPECT_EQ(content_of("Yes.</think>No.</think></think>"), "Yes.No.");
  EXPECT_EQ(content_of("a </think"), "a </think") << "half a tag is text";
  EXPECT_EQ(content_of("a </thin </think> <b"), "a </thin  <b");
}

}  // namespace
}  // namespace hadal::server
