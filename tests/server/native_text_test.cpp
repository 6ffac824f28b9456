// Tests /separate_reasoning, /parse_function_call, /tokenize of conversations, /v1/loads, the paths that
// request something other than text, and paths that end in a slash.
#include "server/native/native_text.h"

#include <gtest/gtest.h>

#include <string>

#include <boost/json.hpp>

#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

using testing::parsed;
using testing::TestServer;
namespace json = boost::json;

constexpr std::string_view kNativeTools =
    R"("tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object"}}}])";
constexpr std::string_view kEscapedCalls =
    "Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\\\"a\\\": 1}<｜tool▁call▁end｜>"
    "<｜tool▁call▁begin｜>add<｜tool▁sep｜>{\\\"a\\\": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";

TestServer::Options v31() {
  return {.server = {.reasoning_parser = "deepseek-v3", .tool_call_parser = "deepseekv31"},
          .chat_format = ChatFormat::kV31};
}

TEST(SeparateReasoning, SplitsATextAsTheNamedParserDoes) {
  TestServer server(v31());
  const auto split = [&](const std::string& body) {
    const HttpResponse response = server.call("POST", "/separate_reasoning", body);
    EXPECT_EQ(response.status, 200) << response.body;
    return parsed(response);
  };
  EXPECT_EQ(split(R"({"text":"a</think>b","reasoning_parser":"deepseek-r1"})"),
            json::parse(R"({"reasoning_text":"a","text":"b"})"));
  EXPECT_EQ(split(R"({"text":"<think>a</think>b","reasoning_parser":"deepseek-v3"})"),
            json::parse(R"({"reasoning_text":"a","text":"b"})"));
  EXPECT_EQ(split(R"({"text":"a b"})"), json::parse(R"({"reasoning_text":"","text":"a b"})"));
}

TEST(SeparateReasoning, ErrorsNameTheFieldAndTheParsers) {
  TestServer server(v31());
  HttpResponse response =
      server.call("POST", "/separate_reasoning", R"({"text":"a","reasoning_parser":"qwen3"})");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(parsed(response).at("param"), "reasoning_parser");
  EXPECT_NE(response.body.find("deepseek-r1"), std::string::npos) << response.body;
  response = server.call("POST", "/separate_reasoning", "{}");
  EXPECT_EQ(parsed(response).at("param"), "text");
  TestServer without;
  response = without.call("POST", "/separate_reasoning", R"({"text":"a"})");
  EXPECT_EQ(response.status, 400);
  EXPECT_NE(response.body.find("name a parser"), std::string::npos) << response.body;
}

TEST(ParseFunctionCall, FindsTheCallsOfAText) {
  TestServer server(v31());
  const std::string text = R"({"text":")" + std::string(kEscapedCalls) + "\"," + std::string(kNativeTools);
  for (const char* parser : {"", R"(,"tool_call_parser":"deepseekv31")"}) {
    const HttpResponse response = server.call("POST", "/parse_function_call", text + parser + "}");
    ASSERT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(parsed(response), json::parse(R"({"normal_text":"Yes.","calls":[
        {"tool_index":0,"name":"add","parameters":"{\"a\": 1}"},
        {"tool_index":1,"name":"add","parameters":"{\"a\": 2}"}]})"));
  }
}

TEST(ParseFunctionCall, ErrorsNameTheField) {
  TestServer server(v31());
  for (const auto& [body, param] :
       {std::pair(std::string(R"({"text":"a"})"), "tools"),
        std::pair(std::string("{") + std::string(kNativeTools) + "}", "text"),
        std::pair(std::string(R"({"text":1,)") + std::string(kNativeTools) + "}", "text"),
        std::pair(
            std::string(R"({"text":"a","tool_call_parser":"llama3",)") + std::string(kNativeTools) + "}",
            "tool_call_parser")}) {
    const HttpResponse response = server.call("POST", "/parse_function_call", body);
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_EQ(parsed(response).at("param"), param);
  }
}

TEST(Tokenize, OfAConversationIsThePromptOfItsChat) {
  TestServer server(v31());
  for (const char* more :
       {"", R"(,"chat_template_kwargs":{"thinking":true})", R"(,"add_generation_prompt":false)"}) {
    const std::string body =
        R"({"messages":[{"role":"user","content":"Hello"}],)" + std::string(kNativeTools) + more;
    const HttpResponse tokens = server.call("POST", "/tokenize", body + "}");
    ASSERT_EQ(tokens.status, 200) << tokens.body;
    const json::value answer = parsed(tokens);
    EXPECT_EQ(answer.at("count").to_number<size_t>(), answer.at("tokens").as_array().size());
    EXPECT_EQ(answer.at("max_model_len"), 4096);
    const json::value chat =
        parsed(server.call("POST", "/v1/chat/completions", body + R"(,"max_tokens":1})"));
    EXPECT_EQ(answer.at("count"), chat.at("usage").at("prompt_tokens")) << more;
  }
  EXPECT_EQ(server.engine().stats().num_requests, 3);
}

TEST(Tokenize, OfAConversationWithoutAGenerationPromptEndsWithTheUsersTurn) {
  TestServer server(v31());
  const std::string body = R"({"messages":[{"role":"user","content":"Hello"}])";
  const json::array open = parsed(server.call("POST", "/tokenize", body + "}")).at("tokens").as_array();
  const json::array closed =
      parsed(server.call("POST", "/tokenize", body + R"(,"add_generation_prompt":false})"))
          .at("tokens")
          .as_array();
  ASSERT_LT(closed.size(), open.size());
  EXPECT_TRUE(std::equal(closed.begin(), closed.end(), open.begin()));
}

TEST(Tokenize, AConversationMayBeLongerThanTheContext) {
  TestServer server(v31());
  std::string text;
  for (int i = 0; i < 6000; ++i) text += "word ";
  const HttpResponse response =
      server.call("POST", "/v1/tokenize", R"({"messages":[{"role":"user","content":")" + text + R"("}]})");
  ASSERT_EQ(response.status, 200) << response.body.substr(0, 200);
  EXPECT_GT(parsed(response).at("count").to_number<int64_t>(), 6000);
}

TEST(Tokenize, MessagesAndAPromptExcludeEachOther) {
  TestServer server(v31());
  for (const auto& [body, param] :
       {std::pair(R"({"messages":[{"role":"user","content":"a"}],"prompt":"b"})", "prompt"),
        std::pair(R"({"messages":[]})", "messages"),
        std::pair(R"({"messages":[{"role":"user","content":"a"}],"return_token_strs":true})",
                  "return_token_strs")}) {
    const HttpResponse response = server.call("POST", "/tokenize", body);
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_EQ(parsed(response).at("error").at("param"), param);
  }
}

TEST(Loads, HaveSglangsShape) {
  TestServer server;
  const json::value loads = parsed(server.call("GET", "/v1/loads"));
  EXPECT_EQ(loads.at("dp_rank_count"), 1);
  const json::value& rank = loads.at("loads").at(0);
  for (const char* name : {"num_running_reqs", "num_waiting_reqs", "num_total_reqs", "num_used_tokens"}) {
    EXPECT_EQ(rank.at(name), 0) << name;
  }
  EXPECT_EQ(rank.at("max_total_num_tokens"), 8192);
  EXPECT_EQ(loads.at("aggregate").at("total_reqs"), 0);
}

TEST(UnsupportedRoutes, SayThatTextIsAllThatIsGenerated) {
  TestServer server;
  for (const char* path :
       {"/v1/embeddings", "/classify", "/v1/score", "/v1/rerank", "/v1/classify", "/encode"}) {
    const HttpResponse response = server.call("POST", path);
    EXPECT_EQ(response.status, 501) << path;
    EXPECT_NE(response.body.find("text generation only"), std::string::npos) << response.body;
    EXPECT_EQ(server.call("GET", path).status, 405);
  }
}

TEST(UnsupportedRoutes, PartsOfMessagesThatAreNotTextAreNotImplementedEither) {
  TestServer server(v31());
  for (const char* type : {"image_url", "input_audio", "file"}) {
    const HttpResponse response =
        server.call("POST", "/v1/chat/completions",
                    std::string(R"({"messages":[{"role":"user","content":[{"type":")") + type + R"("}]}]})");
    EXPECT_EQ(response.status, 501) << type;
    EXPECT_EQ(parsed(response).at("error").at("param"), "messages[0].content[0].type");
    EXPECT_NE(response.body.find("text generation only"), std::string::npos) << response.body;
  }
}

TEST(Paths, MayEndInASlash) {
  TestServer server;
  EXPECT_EQ(server.call("GET", "/health/").status, 200);
  EXPECT_EQ(server.call("GET", "/v1/models/").body, server.call("GET", "/v1/models").body);
  EXPECT_EQ(server.call("GET", "/v1/models/hadal-tiny").status, 200);
  EXPECT_EQ(server.call("GET", "/health//").status, 404);
}

}  // namespace
}  // namespace hadal::server
