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
#include "body_limits.h"
#include "server/json/api_error.h"
#include "server/ollama/ollama_request.h"
#include "unit_limit.h"

namespace {

using namespace hadal;
using namespace hadal::server;

constexpr int64_t kContext = 256;
constexpr int64_t kVocab = 300;

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
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  OpenAiLimits limits = fuzz::body_limits(kContext, kVocab);
  check(parse_ollama_chat(body, limits));
  limits.tokenizer = fuzz::body_tokenizer();
  fuzz::for_each_format(limits, [&](OpenAiLimits of_format) {
    of_format.prompt.allow_auto_truncate = of_format.chat_format == ChatFormat::kR1;
    check(parse_ollama_chat(body, of_format));
    check(parse_ollama_generate(body, of_format));
  });
  return 0;
}
