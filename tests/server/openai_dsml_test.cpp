// Tests V3.2's chat format over /v1/chat/completions: prompts, calls as DSML tags and errors.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <boost/json.hpp>

#include "tests/server/dialect_fixture.h"
#include "text/chat/chat_template.h"

namespace hadal::server {
namespace {

using testing::events_of;
using testing::kChatPath;
using testing::kQuestion;
using testing::parsed;
using testing::str;
using testing::TestServer;
namespace json = boost::json;

constexpr std::string_view kDsmlCalls =
    "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"add\">\n"
    "<｜DSML｜parameter name=\"a\" string=\"true\"> x\n</｜DSML｜parameter>\n"
    "<｜DSML｜parameter name=\"b\" string=\"false\">[1,2]</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"add\">\n\n</｜DSML｜invoke>\n</｜DSML｜function_calls>";

// Returns the options of a server whose model answers `text` to a prompt of `prompt_tokens` tokens and then
// ends.
testing::TestServerOptions dsml_options(int64_t prompt_tokens, std::string_view text) {
  testing::TestServerOptions options;
  options.chat_format = ChatFormat::kV32;
  options.server.reasoning_parser = "deepseek-v3";
  options.server.tool_call_parser = "deepseekv32";
  options.script.clear();
  for (int64_t i = 1; i < prompt_tokens; ++i) options.script += "<｜User｜>";
  options.script += std::string(text) + "<｜end▁of▁sentence｜>";
  return options;
}

std::string conversation_body(std::string_view messages, std::string_view more) {
  return R"({"messages":[)" + std::string(messages) + "]" + (more.empty() ? "" : ",") + std::string(more) +
         "}";
}

json::value answer_of(TestServer& server, const std::string& body) {
  const HttpResponse response = server.call("POST", kChatPath, body);
  EXPECT_EQ(response.status, 200) << response.body;
  return parsed(response);
}

int64_t dsml_prompt_tokens(const std::string& body) {
  TestServer server(dsml_options(1, "x"));
  return testing::chat_prompt_tokens(server, body);
}

TEST(OpenAiDsml, ReasoningContentAndCallsAreSeparatedAndStreamed) {
  const std::string body = conversation_body(
      kQuestion, R"("chat_template_kwargs":{"thinking":true},)" + std::string(testing::kChatTools));
  TestServer server(dsml_options(dsml_prompt_tokens(body), "Hm.</think>I add." + std::string(kDsmlCalls)));
  const json::value choice = answer_of(server, body).at("choices").at(0);
  const json::value& message = choice.at("message");
  EXPECT_EQ(str(choice.at("finish_reason")), "tool_calls");
  EXPECT_EQ(str(message.at("reasoning_content")), "Hm.");
  EXPECT_EQ(str(message.at("content")), "I add.");
  std::vector<std::string> calls;
  for (const json::value& call : message.at("tool_calls").as_array())
    calls.push_back(str(call.at("function").at("arguments")));
  EXPECT_EQ(calls, (std::vector<std::string>{R"({"a": " x\n", "b": [1,2]})", "{}"}));

  std::string content, reasoning;
  std::vector<std::string> streamed;
  const HttpResponse stream = server.call("POST", kChatPath, R"({"stream":true,)" + body.substr(1));
  for (const json::object& event : events_of(stream.body)) {
    const json::value& delta = event.at("choices").at(0).at("delta");
    if (delta.at("content").is_string()) content += str(delta.at("content"));
    if (delta.at("reasoning_content").is_string()) reasoning += str(delta.at("reasoning_content"));
    if (!delta.at("tool_calls").is_array()) continue;
    for (const json::value& call : delta.at("tool_calls").as_array()) {
      const bool is_first = call.as_object().contains("id");
      EXPECT_EQ(call.at("index").to_number<size_t>() + 1, streamed.size() + (is_first ? 1 : 0));
      if (is_first) streamed.emplace_back();
      streamed.back() += str(call.at("function").at("arguments"));
    }
  }
  EXPECT_EQ(content, "I add.");
  EXPECT_EQ(reasoning, "Hm.");
  EXPECT_EQ(streamed, calls);
}

TEST(OpenAiDsml, ACallThatIsCutOffBeforeItsNameIsContentWithoutTheFormatsToken) {
  const std::string body = conversation_body(kQuestion, testing::kChatTools);
  const std::string_view cut = kDsmlCalls.substr(0, kDsmlCalls.find("d\">"));
  TestServer server(dsml_options(dsml_prompt_tokens(body), cut));
  const json::value message = answer_of(server, body).at("choices").at(0).at("message");
  EXPECT_TRUE(message.at("tool_calls").is_null());
  EXPECT_EQ(str(message.at("content")), "\n\n<function_calls>\n<invoke name=\"ad");
}

TEST(OpenAiDsml, ACallCutOffAfterItsNameKeepsTheArgumentsMadeSoFar) {
  const std::string body = conversation_body(kQuestion, testing::kChatTools);
  const std::string_view cut = kDsmlCalls.substr(0, kDsmlCalls.find("x\n"));
  TestServer server(dsml_options(dsml_prompt_tokens(body), cut));
  const json::value choice = answer_of(server, body).at("choices").at(0);
  EXPECT_EQ(str(choice.at("message").at("tool_calls").at(0).at("function").at("arguments")), R"({"a": " )");
  EXPECT_TRUE(choice.at("message").at("content").is_null());
  EXPECT_EQ(str(choice.at("finish_reason")), "stop") << "a broken call is none to execute";
}

TEST(OpenAiDsml, PromptsHaveTheDevelopersRoleAndTheReasoningOfATurn) {
  TestServer server(dsml_options(1, "x"));
  const auto tokens_of = [&](const std::vector<ChatMessage>& messages, bool thinking) {
    return std::ssize(server.tokenizer().encode(
        render_chat(ChatFormat::kV32, messages, {.thinking = thinking}).value(), false));
  };
  const std::vector<ChatMessage> messages = {{.role = "developer", .content = "Search the archive."},
                                             {.role = "assistant",
                                              .reasoning_content = "I reason for a while.",
                                              .tool_calls = {{.name = "add", .arguments = R"({"a":1})"}}},
                                             {.role = "tool", .content = "found"}};
  const std::string list =
      R"({"role":"developer","content":"Search the archive."},{"role":"assistant","content":null,
          "reasoning_content":"I reason for a while.","tool_calls":[{"id":"c","type":"function","function":
          {"name":"add","arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"c","content":"found"})";
  EXPECT_EQ(dsml_prompt_tokens(conversation_body(list, "")), tokens_of(messages, false));
  EXPECT_EQ(dsml_prompt_tokens(conversation_body(list, R"("chat_template_kwargs":{"enable_thinking":true})")),
            tokens_of(messages, true));
  EXPECT_GT(tokens_of(messages, true), tokens_of(messages, false));
}

TEST(OpenAiDsml, ErrorsOfTheEncodingAreBadRequestsThatNameTheMessage) {
  TestServer server(dsml_options(1, "x"));
  const std::string thinking = R"("chat_template_kwargs":{"thinking":true})";
  const struct {
    std::string messages, more, text;
  } cases[] = {
      {R"({"role":"user","content":"a"},{"role":"tool","content":"b"})", "", "messages[1].role"},
      {R"({"role":"user","content":"a"},{"role":"tool","content":"b"})", std::string(testing::kChatTools),
       "messages[1].role"},
      {R"({"role":"user","content":"a"},{"role":"assistant","content":"b"})", thinking, "messages[1] needs"},
      {R"({"role":"developer","content":""})", "", "messages[0].content is empty"},
      {R"({"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"x"}}]})",
       "", "messages[1].tool_calls[0].function.arguments is not valid JSON"},
  };
  for (const auto& c : cases) {
    const HttpResponse response = server.call("POST", kChatPath, conversation_body(c.messages, c.more));
    EXPECT_EQ(response.status, 400) << c.messages;
    const json::value error = parsed(response).at("error");
    EXPECT_EQ(str(error.at("param")), "messages");
    EXPECT_NE(str(error.at("message")).find(c.text), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace hadal::server
