// Fuzzes bodies of Ollama's /api/chat and /api/generate. Accepted values must be within their bounds; errors
// must say why, in JSON that can be parsed. Texts go through a tokenizer of single bytes, chats through every
// format.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "base/check.h"
#include "server/api_error.h"
#include "server/ollama_request.h"
#include "unit_limit.h"

namespace {

using namespace hadal;
using namespace hadal::server;

constexpr int64_t kContext = 256;
constexpr int64_t kVocab = 300;

constexpr std::string_view kTokenizer = R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2},"merges":[]},
  "added_tokens":[{"id":3,"content":"</think>","special":false}],
  "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":false},
  "decoder":{"type":"ByteLevel"}})";

void check_accepted(const OllamaRequest& request) {
  HADAL_CHECK(request.common.items.size() == (request.loads_only ? 0 : 1));
  for (const OpenAiItem& item : request.common.items) {
    const GenerationRequest& one = item.request;
    const SamplingParams& params = one.sampling;
    HADAL_CHECK(!one.rid.empty() && !one.input_ids.empty());
    HADAL_CHECK(one.stream == request.common.stream);
    for (const int32_t id : one.input_ids) HADAL_CHECK(id >= 0 && id < kVocab);
    HADAL_CHECK(params.max_new_tokens >= 1);
    HADAL_CHECK(static_cast<int64_t>(one.input_ids.size()) + params.max_new_tokens <= kContext);
    HADAL_CHECK(std::isfinite(params.temperature) && params.temperature >= 0);
    HADAL_CHECK(params.top_p > 0 && params.top_p <= 1);
    HADAL_CHECK(params.top_k == -1 || params.top_k >= 1);
    HADAL_CHECK(params.repetition_penalty > 0 && params.repetition_penalty <= 2);
    HADAL_CHECK(one.logprobs.top_num >= 0 && one.logprobs.top_num <= kMaxChatTopLogprobs);
  }
}

void check(const std::variant<OllamaRequest, FieldError>& parsed) {
  if (const auto* request = std::get_if<OllamaRequest>(&parsed)) return check_accepted(*request);
  const FieldError& error = std::get<FieldError>(parsed);
  const int status = http_status(error.status.code);
  HADAL_CHECK(status == 400 || status == 501, "{}", error.status.message);
  const HttpResponse response = error_response(ErrorStyle::kOllama, error.status, error.field);
  HADAL_CHECK(!boost::json::parse(response.body).at("error").as_string().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::UnitLimit limit_of_time(3.0);
  static const auto tokenizer = Tokenizer::from_json(kTokenizer);
  HADAL_CHECK(tokenizer.ok(), "{}", tokenizer.status().message);
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  OpenAiLimits limits;
  limits.prompt = {.context_length = kContext, .max_total_tokens = 4096};
  limits.vocab_size = kVocab;
  limits.model_name = "m";
  check(parse_ollama_chat(body, limits));
  limits.tokenizer = tokenizer->get();
  for (const ChatFormat format :
       {ChatFormat::kV2, ChatFormat::kV25, ChatFormat::kR1, ChatFormat::kV31, ChatFormat::kV32}) {
    limits.chat_format = format;
    limits.reasoning = resolve_reasoning_format("auto", format).value();
    limits.tool_calls = resolve_tool_call_format("auto", format).value();
    limits.prompt.allow_auto_truncate = format == ChatFormat::kR1;
    check(parse_ollama_chat(body, limits));
    check(parse_ollama_generate(body, limits));
  }
  return 0;
}
