// Holds what the tests of the APIs for chats share: servers whose model says a given text, and the events of
// named streams.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "tests/server/test_server.h"
#include "text/chat/chat_template.h"

namespace hadal::server::testing {

inline constexpr const char* kChatPath = "/v1/chat/completions";
inline constexpr std::string_view kQuestion = R"({"role":"user","content":"Hi"})";

// The models of these tests are offered this tool, and write these two calls of it in the format of V3.1.
inline constexpr std::string_view kChatTools =
    R"("tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object","properties":{}}}}])";
inline constexpr std::string_view kCalls =
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"
    "<｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";

// Returns the options of a server whose model speaks `format` and generates `script`.
inline TestServerOptions chat_options(std::string script, ChatFormat format = ChatFormat::kV31) {
  TestServerOptions options;
  options.chat_format = format;
  options.server.reasoning_parser = format == ChatFormat::kR1 ? "deepseek-r1" : "deepseek-v3";
  options.server.tool_call_parser = format == ChatFormat::kV31 ? "deepseekv31" : "deepseekv3";
  options.script = std::move(script);
  return options;
}

// Returns the options of a server whose model answers `text` to a prompt of `prompt_tokens` tokens and then
// ends.
inline TestServerOptions answering(int64_t prompt_tokens, std::string_view text,
                                   ChatFormat format = ChatFormat::kV31) {
  std::string script;
  for (int64_t i = 1; i < prompt_tokens; ++i) script += "<｜User｜>";
  return chat_options(script + std::string(text) + "<｜end▁of▁sentence｜>", format);
}

// Returns the body of an OpenAI chat with further fields. Its prompt in V3.1's format is
// <bos><User>Hi<Assistant></think>.
inline std::string chat_body(std::string_view more = {}) {
  std::string body = R"({"messages":[{"role":"user","content":"Hi"}])";
  if (!more.empty()) body += ",";
  return body + std::string(more) + "}";
}

// Returns the number of tokens of an OpenAI chat's prompt, as the server's usage states it.
inline int64_t chat_prompt_tokens(TestServer& server, const std::string& body) {
  const HttpResponse response = server.call("POST", kChatPath, body);
  EXPECT_EQ(response.status, 200) << response.body;
  return response.status != 200 ? 0 : parsed(response).at("usage").at("prompt_tokens").to_number<int64_t>();
}

// Returns the data of a stream's events, each of which must be named as its type.
inline std::vector<boost::json::value> named_events_of(const std::string& body) {
  std::vector<boost::json::value> events;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    EXPECT_NE(end, std::string::npos) << "an event without an end";
    if (end == std::string::npos) break;
    const std::string lines = body.substr(at, end - at);
    const size_t data = lines.find("\ndata: ");
    EXPECT_TRUE(lines.starts_with("event: ") && data != std::string::npos) << lines;
    if (data == std::string::npos) break;
    events.push_back(boost::json::parse(lines.substr(data + 7)));
    EXPECT_EQ(lines.substr(7, data - 7), str(events.back().at("type")));
    at = end + 2;
  }
  return events;
}

}  // namespace hadal::server::testing
