// Tests what errors about a client's fields say: the field, its value, what is allowed, and never more of the
// value than a line holds.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "base/printable.h"
#include "server/admission/request_memory.h"
#include "server/json/api_error.h"
#include "server/json/json_fields.h"
#include "server/native/native_request.h"
#include "tests/server/test_server.h"
#include "text/chat/chat_template.h"

namespace hadal::server {
namespace {

using testing::parsed;
using testing::TestServer;

// Returns the error of a body of /generate for two prompts, or nothing.
std::string native_error(const std::string& more) {
  const auto result = parse_native_request(R"({"input_ids":[[3],[4]],)" + more + "}",
                                           {.prompt = {.context_length = 4096, .max_total_tokens = 8192},
                                            .vocab_size = testing::kVocab,
                                            .tokenizer = nullptr});
  const FieldError* error = std::get_if<FieldError>(&result);
  return error == nullptr ? std::string() : error->status.message;
}

std::string sampling_error(const std::string& field) {
  return native_error(R"("sampling_params":{)" + field + "}");
}

TEST(ErrorTexts, SamplingParametersAreNamedWithValueAndRange) {
  EXPECT_EQ(sampling_error(R"("top_p":1e-45)"),
            "sampling_params.top_p is 1e-45; must be a number in [1e-30, 1]");
  EXPECT_EQ(sampling_error(R"("repetition_penalty":1e-45)"),
            "sampling_params.repetition_penalty is 1e-45; must be a number in [1e-30, 2]");
  EXPECT_EQ(sampling_error(R"("temperature":1e31)"),
            "sampling_params.temperature is 1e+31; must be a number in [0, 1e+30]");
  EXPECT_EQ(sampling_error(R"("sampling_seed":9223372036854775808)"),
            "sampling_params.sampling_seed is 9223372036854775808; must be an integer in [0, "
            "9223372036854775807]");
  EXPECT_EQ(
      sampling_error(R"("min_new_tokens":10,"max_new_tokens":5)"),
      "sampling_params.min_new_tokens is 10; must be an integer in [0, 5], because max_new_tokens is 5");
  EXPECT_EQ(sampling_error(R"("logit_bias":{"5":1000})"),
            "sampling_params.logit_bias.5 is 1000; must be a number in [-100, 100]");
  EXPECT_EQ(sampling_error(R"("stop":["a","b","c",5])"),
            "sampling_params.stop[3] is 5; must be a string of at most 4096 bytes");
  EXPECT_EQ(sampling_error(R"("min_new_tokens":10)"), "") << "the server's own length may be shorter";
}

TEST(ErrorTexts, AMessageBeginsWithItsFieldWhereTheObjectHasNoMemberForIt) {
  const auto text = [](std::string_view message, std::string_view param) {
    return error_response(ErrorStyle::kOllama, 400, message, param).body;
  };
  EXPECT_EQ(text("needs a number", "n"), R"({"error":"n: needs a number"})");
  EXPECT_EQ(text("n must be a number", "n"), R"({"error":"n must be a number"})");
  EXPECT_EQ(text("n", "n"), R"({"error":"n"})");
  EXPECT_EQ(text("must be a number", ""), R"({"error":"must be a number"})");
}

TEST(ErrorTexts, AListOfSamplingParametersIsNamedWithItsEntry) {
  EXPECT_EQ(native_error(R"("sampling_params":[{},{"stop":["a",7]}])"),
            "sampling_params[1].stop[1] is 7; must be a string of at most 4096 bytes");
  EXPECT_EQ(native_error(R"("sampling_params":[{},7])"), "sampling_params[1] is 7; must be an object");
  EXPECT_EQ(
      native_error(R"("sampling_params":[{},{"min_new_tokens":3,"max_new_tokens":2}])"),
      "sampling_params[1].min_new_tokens is 3; must be an integer in [0, 2], because max_new_tokens is 2");
}

TEST(ErrorTexts, AListWithoutAValueForEachPromptIsNamedWithTheLengthThatItMustHave) {
  const std::string allowed = "; must be one value for all prompts, or a list of 2, one for each prompt";
  EXPECT_EQ(native_error(R"("rid":["x"])"), R"(rid is ["x"])" + allowed);
  EXPECT_EQ(native_error(R"("sampling_params":[{"n":1}])"), R"(sampling_params is [{"n":1}])" + allowed);
  EXPECT_EQ(native_error(R"("logprob_start_len":[1,2,3])"), "logprob_start_len is [1,2,3]" + allowed);
  std::string many = "0";
  for (int i = 0; i < 100; ++i) many += ",0";
  EXPECT_EQ(native_error(R"("top_logprobs_num":[)" + many + "]"),
            "top_logprobs_num is a list of 101 values" + allowed);
  TestServer server;
  const HttpResponse answer =
      server.call("POST", "/v1/completions", R"({"prompt":[[3],[4]],"rid":["a","b","c"],"max_tokens":1})");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(parsed(answer).at("message").as_string(), R"(rid is ["a","b","c"])" + allowed);
}

TEST(ErrorTexts, TheErrorSaysWhetherBothTextAndInputIdsAreGivenOrNeither) {
  EXPECT_EQ(native_error(R"("text":"a")"),
            "input_ids: both text and input_ids are given; exactly one of text and input_ids must be given");
  TestServer server;
  EXPECT_EQ(parsed(server.generate(R"({"text":null})")).at("message").as_string(),
            "text: neither text nor input_ids is given; exactly one of text and input_ids must be given");
}

TEST(ErrorTexts, MissingMemoryIsShownInTheLargestUnitThatFits) {
  const RequestMemory memory(size_t{3} << 20);
  EXPECT_EQ(memory_exhausted(memory, MemoryKind::kPrompt, 17).message,
            "the memory for all requests is in use (max-request-memory): this one needs 17 bytes for its "
            "prompt, 3.0 "
            "MiB of 3.0 MiB are free; try again later");
  EXPECT_NE(memory_exhausted(memory, MemoryKind::kBody, 5 << 10).message.find("needs 5.0 KiB for its body"),
            std::string::npos);
}

TEST(ErrorTexts, ToolsThatAreNestedTooDeepAreToldHowDeep) {
  testing::TestServerOptions options;
  options.chat_format = ChatFormat::kV31;
  TestServer server(options);
  std::string nested = "{}";
  for (int i = 0; i < 70; ++i) nested = R"({"a":)" + nested + "}";
  const HttpResponse answer = server.call(
      "POST", "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f",)"
      R"("parameters":)" +
          nested + "}}]}");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(parsed(answer).at("message").as_string(), "tools: nested 74 levels deep; at most 64 are allowed");
}

TEST(ErrorTexts, TwoEqualIdsOfARequestAreNamedWithTheirPrompts) {
  EXPECT_EQ(native_error(R"("rid":["x","x"])"),
            R"(rid: prompts 0 and 1 have the id "x"; the ids of one request must differ)");
  EXPECT_EQ(native_error(R"("rid":["x","x_0"],"sampling_params":[{"n":2},{}])"),
            R"(rid: prompts 0 and 1 have the id "x_0"; the ids of one request must differ)");
  EXPECT_EQ(native_error(R"("rid":["x","y"])"), "");
  EXPECT_EQ(native_error(R"("rid":"x","sampling_params":{"n":3})"), "") << "they are numbered";
  TestServer server;
  const HttpResponse answer = server.call("POST", "/v1/completions",
                                          R"({"prompt":[[3],[4],[5]],"rid":["a","b","a"],"max_tokens":1})");
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.body.find("prompts 0 and 2 have the id"), std::string::npos) << answer.body;
}

TEST(ErrorTexts, ABodyThatIsNotJsonIsToldWhereAndWhy) {
  const auto error = [](std::string_view body) {
    const auto result = parse_json_object(body);
    return result.ok() ? std::string() : result.status().message;
  };
  constexpr std::string_view kCases[][2] = {
      {R"({"a":1,})", R"("}" at byte 7 cannot follow "{\"a\":1,"; nothing may end after a comma)"},
      {R"({'a':1})", R"("'" at byte 1 cannot follow "{"; keys and texts must be in double quotes)"},
      // An answer is valid UTF-8 whatever the body is.
      {"{\"a\"b\x86:1}", "\"b\xEF\xBF\xBD\" at byte 4 cannot follow \"{\\\"a\\\"\""},
      {R"({a:1})", R"("a" at byte 1 cannot follow "{"; keys must be in double quotes)"},
      {R"({"a":1} x)",
       R"("x" at byte 8 cannot follow "{\"a\":1} "; after a value comes a comma, the closing)"},
      {R"({"a":01})", R"("1" at byte 6 cannot follow "{\"a\":0")"},
      {R"({"a" 1})", R"("1" at byte 5 cannot follow "{\"a\" "; after a key comes a colon)"},
      {R"({"a":NaN})", R"("N" at byte 5 cannot follow "{\"a\":"; a value must be a string, a number)"},
      {R"({"a":"\x"})", R"("x" at byte 7 cannot follow "{\"a\":\"\\"; after a backslash)"},
      {"{\"a\":\"b\nc\"}", R"("\n" at byte 7 cannot follow "{\"a\":\"b"; inside a string, line breaks)"},
      {"{\"a\":\"b\x01\"}", R"("\u0001" at byte 7 cannot follow "{\"a\":\"b"; control characters)"},
      {R"({"a":[1)", "it ends at byte 7, before its value is complete"},
      {"{\"a\":1  \n", "it ends at byte 9, before its value is complete"},
      {R"({"a":"\ud800"})",
       R"("\"" at byte 12 cannot follow "{\"a\":\"\\ud800"; a surrogate is half of a character)"},
      {R"({"a":"\udc00 b"})", R"(" " at byte 12 cannot follow "{\"a\":\"\\udc00"; a surrogate is half)"},
      {R"({"a":"\uD800\n"})", R"("n" at byte 13 cannot follow "{\"a\":\"\\uD800\\"; a surrogate is half)"},
      {R"({"a":"\ud800\u0041"})",
       R"("0" at byte 14 cannot follow "{\"a\":\"\\ud800\\u"; a surrogate is half)"},
      {R"({"a":"\ud83d\ude00"5})",
       R"("5" at byte 19 cannot follow "{\"a\":\"\\ud83d\\ude00\""; after a key comes a colon)"},
      {"x", R"(it begins with "x"; a value must be a string in double quotes, a number)"},
      {" <html>", R"(it begins with "<"; a value must be)"},
      {"{\"\xe6\x9d\xb1\":\xe8\xa5\xbf}", "\"西\" at byte 7 cannot follow \"{\\\"東\\\":\""},
  };
  for (const auto& [body, says] : kCases)
    EXPECT_TRUE(error(body).starts_with("the body is not JSON: " + std::string(says))) << error(body);
  EXPECT_EQ(error(R"({"a":)" + std::string(150, '[')),
            "the body is nested 151 levels deep; at most 100 are allowed");
  EXPECT_LT(error("{\"a\":\"" + std::string(100'000, 'x') + "\" 5}").size(), 300U);
}

TEST(ErrorTexts, NoErrorRepeatsMoreThanSixtyFourCharactersOfAValue) {
  testing::TestServerOptions options;
  options.chat_format = ChatFormat::kV31;
  options.server.tool_call_parser = "deepseekv31";
  TestServer server(options);
  const std::string big(3000, 'x');
  const std::string shown = std::string(kShownChars, 'x') + "…";
  const std::string message = R"({"messages":[{"role":"user","content":"a"}],)";
  const std::string bodies[] = {
      R"({"messages":[{"role":")" + big + R"("}]})",
      R"({"messages":[{"role":"user","content":[{"type":")" + big + R"("}]}]})",
      R"({"messages":[{"role":"assistant","tool_calls":[{"type":")" + big +
          R"(","function":{"name":"f"}}]}]})",
      R"({"messages":")" + big + R"("})",
      message + R"("tool_choice":")" + big + R"("})",
      message + R"("tool_choice":{"type":"function","function":{"name":")" + big + R"("}}})",
      message + R"("reasoning_effort":")" + big + R"("})",
      message + R"("response_format":{"type":")" + big + R"("}})",
      message + R"("modalities":[")" + big + R"("]})",
      message + R"("logit_bias":{")" + big + R"(":1}})",
      message + R"("rid":[")" + big + R"("],"temperature":")" + big + R"("})",
      message + R"("stop":{")" + big + R"(":1}})",
  };
  for (const std::string& body : bodies) {
    const HttpResponse answer = server.call("POST", "/v1/chat/completions", body);
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_EQ(answer.body.find(big.substr(0, kShownChars + 1)), std::string::npos) << answer.body;
    EXPECT_LT(answer.body.size(), 700U) << answer.body;
  }
  const HttpResponse role = server.call("POST", "/v1/chat/completions", bodies[0]);
  EXPECT_EQ(parsed(role).at("message").as_string(),
            "messages[0].role is \"" + shown + "\"; must be system, developer, user, assistant or tool");
  const HttpResponse escapes = server.call("POST", "/v1/chat/completions",
                                           R"({"messages":[{"role":")" + std::string(200, '\\') + R"("}]})");
  EXPECT_LT(escapes.body.size(), 700U) << escapes.body;
}

}  // namespace
}  // namespace hadal::server
