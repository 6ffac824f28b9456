// Fuzzes bodies of OpenAI's /v1/responses and input_tokens. Accepted prompts must fit, the same body must
// count as many tokens as it has, what repeats the request must be JSON, and errors must have a reason. Texts
// go through a tokenizer of single bytes, conversations through every format.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <boost/json.hpp>

#include "base/check.h"
#include "server/api_error.h"
#include "server/responses_request.h"
#include "unit_limit.h"

namespace {

using namespace hadal;
using namespace hadal::server;

constexpr int64_t kContext = 2048;

constexpr std::string_view kTokenizer = R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2},"merges":[]},
  "added_tokens":[{"id":3,"content":"</think>","special":false}],
  "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":false},
  "decoder":{"type":"ByteLevel"}})";

void check_refused(const FieldError& error) {
  HADAL_CHECK(http_status(error.status.code) == 400, "{}", error.status.message);
  const HttpResponse response = error_response(ErrorStyle::kOpenAi, error.status, error.field);
  const boost::json::value answer = boost::json::parse(response.body);
  HADAL_CHECK(!answer.at("error").at("message").as_string().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::UnitLimit limit_of_time(3.0);
  static const auto tokenizer = Tokenizer::from_json(kTokenizer);
  HADAL_CHECK(tokenizer.ok(), "{}", tokenizer.status().message);
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  ResponseStore store(1 << 20);
  ChatMessage said;
  said.role = "assistant";
  said.content = "b";
  store.put("resp_1", "", "{}", {}, {said});
  OpenAiLimits limits;
  limits.prompt = {.context_length = kContext, .max_total_tokens = 4096};
  limits.vocab_size = 300;
  limits.model_name = "m";
  limits.tokenizer = tokenizer->get();
  for (const ChatFormat format :
       {ChatFormat::kV2, ChatFormat::kV25, ChatFormat::kR1, ChatFormat::kV31, ChatFormat::kV32}) {
    limits.chat_format = format;
    limits.reasoning = resolve_reasoning_format("auto", format).value();
    limits.tool_calls = resolve_tool_call_format("auto", format).value();
    const auto response = parse_responses(body, limits, store, "");
    const auto counted = count_responses_tokens(body, limits, store, "");
    if (const auto* error = std::get_if<FieldError>(&counted)) check_refused(*error);
    if (const auto* error = std::get_if<FieldError>(&response)) {
      check_refused(*error);
      continue;
    }
    const auto& accepted = std::get<ResponsesRequest>(response);
    HADAL_CHECK(boost::json::parse("{\"a\":0" + accepted.echo + "}").is_object());
    const OpenAiRequest& request = accepted.common;
    HADAL_CHECK(request.items.size() == 1 && !request.id.empty());
    const GenerationRequest& one = request.items.front().request;
    const auto prompt = static_cast<int64_t>(one.input_ids.size());
    HADAL_CHECK(prompt > 0 && prompt + one.sampling.max_new_tokens <= kContext);
    HADAL_CHECK(std::get<int64_t>(counted) == prompt);
  }
  return 0;
}
