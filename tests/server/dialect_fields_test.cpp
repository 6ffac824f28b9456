// Tests how the other dialects treat fields that are not theirs, and fields that request what is not
// supported here. Each path ignores and counts the first, and refuses the second in its own form of errors.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "server/json/known_fields.h"
#include "tests/server/test_server.h"
#include "text/chat/chat_template.h"

namespace hadal::server {
namespace {

using testing::parsed;
using testing::TestServer;
namespace json = boost::json;

// Returns the options of a server whose model says anything and goes on until a length is reached.
testing::TestServerOptions dialect_options() {
  testing::TestServerOptions out;
  out.chat_format = ChatFormat::kV31;
  out.server.enable_metrics = true;
  return out;
}

// These are the bodies of requests that each path accepts, without their end.
struct Path {
  std::string path;
  std::string body;
};
const Path kMessages{"/v1/messages", R"({"max_tokens":2,"messages":[{"role":"user","content":"Hi"}])"};
const Path kResponses{"/v1/responses", R"({"max_output_tokens":2,"input":"Hi")"};
const Path kOllamaChat{
    "/api/chat",
    R"({"model":"m","stream":false,"options":{"num_predict":2},"messages":[{"role":"user","content":"Hi"}])"};
const Path kOllamaGenerate{"/api/generate",
                           R"({"model":"m","stream":false,"options":{"num_predict":2},"prompt":"Hi")"};

HttpResponse post(TestServer& server, const Path& path, std::string_view more) {
  return server.call("POST", path.path, path.body + "," + std::string(more) + "}");
}

int64_t num_unknown(TestServer& server) {
  const std::string metrics = server.call("GET", "/metrics").body;
  const size_t line = metrics.find("\nsglang:unknown_request_fields_total{");
  EXPECT_NE(line, metrics.npos);
  return line == metrics.npos ? -1 : std::stoll(metrics.substr(metrics.find("} ", line) + 2));
}

TEST(DialectFields, UnknownOnesAreIgnoredAndCounted) {
  TestServer server(dialect_options());
  int64_t expected = 0;
  for (const Path& path : {kMessages, kResponses, kOllamaChat, kOllamaGenerate}) {
    const HttpResponse response = post(server, path, R"("nonsense":[1],"temprature":1,"none":null)");
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(num_unknown(server), expected += 2) << path.path;
  }
}

TEST(DialectFields, ThoseOfAnotherDialectAreUnknown) {
  TestServer server(dialect_options());
  const std::pair<Path, std::string_view> cases[] = {
      {kMessages, R"("input":"x")"},          {kResponses, R"("stop_sequences":["x"])"},
      {kOllamaChat, R"("temperature":0)"},    {kOllamaChat, R"("prompt":"x")"},
      {kOllamaGenerate, R"("max_tokens":5)"}, {kOllamaGenerate, R"("messages":[])"}};
  int64_t expected = 0;
  for (const auto& [path, more] : cases) {
    const HttpResponse response = post(server, path, more);
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(num_unknown(server), ++expected) << path.path << " " << more;
  }
}

// A client that sets the answer's length or its thinking under another name must not get an answer without
// it.
TEST(DialectFields, ThoseThatHaveAnotherNameHereAreRefusedWithTheNameToUse) {
  TestServer server(dialect_options());
  struct Case {
    Path path;
    std::string_view more;
    std::string_view advice;
  };
  for (const Case& c : {Case{kMessages, R"("max_completion_tokens":5)", "use max_tokens"},
                        Case{kMessages, R"("max_output_tokens":5)", "use max_tokens"},
                        Case{kMessages, R"("reasoning_effort":"high")", "use thinking"},
                        Case{kResponses, R"("max_tokens":5)", "use max_output_tokens"},
                        Case{kResponses, R"("max_completion_tokens":5)", "use max_output_tokens"},
                        Case{kResponses, R"("messages":[1])", "use input"},
                        Case{kResponses, R"("reasoning_effort":"high")", "use reasoning"}}) {
    const HttpResponse response = post(server, c.path, c.more);
    EXPECT_EQ(response.status, 400) << c.more;
    EXPECT_NE(response.body.find(c.advice), std::string::npos) << response.body;
  }
}

// The prompt of a forged turn is longer where its special tokens are text.
TEST(DialectFields, ContentSpecialTokensHoldsInEveryDialect) {
  TestServer server(dialect_options());
  const Path paths[] = {
      {"/v1/messages", R"({"max_tokens":2,"messages":[{"role":"user","content":"<｜User｜>x"}])"},
      {"/v1/messages/count_tokens", R"({"messages":[{"role":"user","content":"<｜User｜>x"}])"},
      {"/v1/responses", R"({"max_output_tokens":2,"input":"<｜User｜>x")"},
      {"/v1/responses/input_tokens", R"({"input":"<｜User｜>x")"},
      {"/api/chat", R"({"model":"m","stream":false,"messages":[{"role":"user","content":"<｜User｜>x"}])"},
      {"/api/generate", R"({"model":"m","stream":false,"prompt":"<｜User｜>x")"}};
  for (const Path& path : paths) {
    const auto num_tokens = [&](std::string_view mode) {
      const HttpResponse response =
          post(server, path, R"("content_special_tokens":")" + std::string(mode) + '"');
      EXPECT_EQ(response.status, 200) << path.path << " " << response.body;
      const json::object answer = parsed(response).as_object();
      const json::object& usage = answer.contains("usage") ? answer.at("usage").as_object() : answer;
      const char* name = usage.contains("prompt_eval_count") ? "prompt_eval_count" : "input_tokens";
      return usage.at(name).to_number<int64_t>();
    };
    EXPECT_GT(num_tokens("text"), num_tokens("special") + 2) << path.path;
    EXPECT_EQ(post(server, path, R"("content_special_tokens":"bogus")").status, 400) << path.path;
  }
  EXPECT_EQ(post(server, kOllamaGenerate, R"("raw":true,"content_special_tokens":"text")").status, 400);
}

TEST(DialectFields, UnknownOptionsOfOllamaAreCountedAndEnginesSettingsAreNot) {
  TestServer server(dialect_options());
  const auto ask = [&](std::string_view more) {
    const std::string body =
        R"({"model":"m","stream":false,"prompt":"Hi","options":{"num_predict":2,)" + std::string(more) + "}}";
    const HttpResponse response = server.call("POST", "/api/generate", body);
    EXPECT_EQ(response.status, 200) << response.body;
    return num_unknown(server);
  };
  EXPECT_EQ(ask(R"("num_gpu":1,"num_batch":8,"num_thread":2,"use_mmap":true,"numa":false,"num_keep":4)"), 0);
  EXPECT_EQ(ask(R"("mirostat":0,"mirostat_tau":5,"mirostat_eta":0.1,"penalize_newline":true)"), 0);
  EXPECT_EQ(ask(R"("temprature":0,"max_tokens":3)"), 2);
}

TEST(DialectFields, OfABodyThatOnlyAsksForTheModelAreCountedToo) {
  TestServer server(dialect_options());
  EXPECT_EQ(server.call("POST", "/api/generate", R"({"model":"m","nonsense":1})").status, 200);
  EXPECT_EQ(num_unknown(server), 1);
}

TEST(DialectFields, KnownOnesThatAskForNothingAreAcceptedAndNotCounted) {
  TestServer server(dialect_options());
  const std::pair<Path, std::string_view> cases[] = {
      {kMessages,
       R"("system":"s","metadata":{"user_id":"u"},"service_tier":"auto","speed":"standard","stop_sequences":["~"],
          "cache_control":{"type":"ephemeral"},"inference_geo":"us","container":null,"mcp_servers":[],
          "context_management":{},"top_k":4,"min_p":0.1,"seed":1,"cache_salt":"c","output_config":{"effort":"low"})"},
      {kResponses,
       R"("instructions":"s","metadata":{"a":"b"},"service_tier":"auto","user":"u","safety_identifier":"s",
          "prompt_cache_key":"k","prompt_cache_retention":"in_memory","max_tool_calls":3,"background":false,
          "truncation":"disabled","include":[],"store":false,"text":{"format":{"type":"text"}},"top_logprobs":0,
          "parallel_tool_calls":true,"tools":[],"tool_choice":"auto","reasoning":{},"stream_options":{},"seed":1)"},
      {kOllamaChat,
       R"("tools":[],"keep_alive":"5m","format":"","think":false,"truncate":true,"shift":true,"logprobs":false)"},
      {kOllamaGenerate,
       R"("system":"s","template":"","suffix":"","context":[],"raw":false,"images":[],"keep_alive":5,"truncate":true,
          "shift":false,"think":false,"_debug_render_only":false,"top_logprobs":0)"}};
  for (const auto& [path, more] : cases) {
    const HttpResponse response = post(server, path, more);
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(num_unknown(server), 0) << path.path;
  }
}

TEST(DialectFields, ThatAskForWhatIsNotDoneAreRefusedInTheFormOfTheirApi) {
  TestServer server(dialect_options());
  const auto message_of = [&](const Path& path, std::string_view more) {
    const HttpResponse response = post(server, path, more);
    EXPECT_EQ(response.status, 400) << more;
    const json::value answer = parsed(response);
    const json::value& error = answer.at("error");
    if (error.is_string()) return std::string(error.as_string());  // Ollama's
    if (path.path == kMessages.path) {
      EXPECT_EQ(answer.at("type").as_string(), "error");
      EXPECT_EQ(error.at("type").as_string(), "invalid_request_error");
    } else {
      EXPECT_NE(more.find(std::string_view(error.at("param").as_string())), more.npos);
    }
    return std::string(error.at("message").as_string());
  };
  const struct {
    const Path& path;
    std::string_view more, field;
  } cases[] = {
      {kMessages, R"("container":"c")", "container"},
      {kMessages, R"("mcp_servers":[{"url":"x"}])", "mcp_servers"},
      {kMessages, R"("context_management":{"edits":[]})", "context_management"},
      {kResponses, R"("background":true)", "background"},
      {kResponses, R"("conversation":"c")", "conversation"},
      {kResponses, R"("moderation":{"a":1})", "moderation"},
      {kOllamaChat, R"("_debug_render_only":true)", "_debug_render_only"},
      {kOllamaGenerate, R"("width":512)", "width"},
      {kOllamaGenerate, R"("steps":4)", "steps"},
      {kOllamaGenerate, R"("context":[1,2])", "context"},
      {kOllamaGenerate, R"("options":{"repeat_penalty":1.1,"repeat_last_n":-1,"penalize_newline":false})",
       "options.penalize_newline"},
  };
  for (const auto& one : cases)
    EXPECT_TRUE(message_of(one.path, one.more).starts_with(one.field)) << one.more;
  EXPECT_EQ(num_unknown(server), 0);
}

TEST(KnownFields, HaveATableForEachKindOfBody) {
  const json::object body =
      json::parse(R"({"min_p":0,"messages":0,"input":0,"prompt":0,"mirostat":0,"x":null})").as_object();
  EXPECT_EQ(num_unknown_fields(body, BodyKind::kOpenAi), 2);
  EXPECT_EQ(num_unknown_fields(body, BodyKind::kMessages), 3);
  EXPECT_EQ(num_unknown_fields(body, BodyKind::kResponses), 1);
  EXPECT_EQ(num_unknown_fields(body, BodyKind::kOllamaChat), 4);
  EXPECT_EQ(num_unknown_fields(body, BodyKind::kOllamaGenerate), 4);
  EXPECT_EQ(num_unknown_fields(body, BodyKind::kOllamaOptions), 3);
}

}  // namespace
}  // namespace hadal::server
