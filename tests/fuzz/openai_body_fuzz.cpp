// Fuzzes bodies of /v1/chat/completions, /v1/completions and /v1/tokenize. Accepted values must be within
// their bounds; errors must name the field and the reason, in JSON that can be parsed. Texts go through a
// tokenizer of single bytes, chats through every format.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "base/check.h"
#include "body_limits.h"
#include "server/json/api_error.h"
#include "server/openai/openai_chat_request.h"
#include "server/openai/openai_completion_request.h"
#include "unit_limit.h"

namespace {

using namespace hadal;
using namespace hadal::server;

constexpr int64_t kContext = 256;
constexpr int64_t kVocab = 300;

void check_accepted(const OpenAiRequest& request) {
  HADAL_CHECK(!request.id.empty());
  HADAL_CHECK(!request.items.empty() && request.items.size() <= kMaxBatch);
  for (const OpenAiItem& item : request.items) {
    const GenerationRequest& one = item.request;
    const SamplingParams& params = one.sampling;
    HADAL_CHECK(!one.rid.empty());
    HADAL_CHECK(one.stream == request.stream);
    HADAL_CHECK(!one.input_ids.empty());
    for (const int32_t id : one.input_ids) HADAL_CHECK(id >= 0 && id < kVocab);
    HADAL_CHECK(static_cast<int64_t>(one.input_ids.size()) + params.max_new_tokens <= kContext);
    HADAL_CHECK(params.min_new_tokens >= 0 && params.min_new_tokens <= params.max_new_tokens);
    HADAL_CHECK(std::isfinite(params.temperature) && params.temperature >= 0);
    HADAL_CHECK(params.top_p > 0 && params.top_p <= 1);
    HADAL_CHECK(params.top_k == -1 || params.top_k >= 1);
    HADAL_CHECK(one.logprobs.top_num >= 0 && one.logprobs.top_num <= kMaxTopLogprobs);
    for (const auto& [id, bias] : params.logit_bias) HADAL_CHECK(id < kVocab && std::abs(bias) <= 100);
  }
}

void check_refused(const FieldError& error) {
  const int status = http_status(error.status.code);
  HADAL_CHECK(status == 400 || status == 501, "{}", error.status.message);  // 501: images, sound and files
  const HttpResponse response = error_response(ErrorStyle::kOpenAi, error.status, error.field);
  const boost::json::value answer = boost::json::parse(response.body);
  HADAL_CHECK(!answer.at("error").at("message").as_string().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::UnitLimit limit_of_time(3.0);
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  OpenAiLimits limits = fuzz::body_limits(kContext, kVocab);
  for (const bool with_tokenizer : {false, true}) {
    limits.tokenizer = with_tokenizer ? fuzz::body_tokenizer() : nullptr;
    const auto completion = parse_openai_completion(body, limits);
    if (const auto* request = std::get_if<OpenAiCompletionRequest>(&completion)) {
      check_accepted(request->common);
      HADAL_CHECK(!request->echo || request->echo_texts.size() == request->common.items.back().prompt + 1);
    } else {
      check_refused(std::get<FieldError>(completion));
    }
  }
  fuzz::for_each_format(limits, [&](OpenAiLimits of_format) {
    of_format.prompt.allow_auto_truncate = of_format.chat_format == ChatFormat::kR1;
    const auto chat = parse_openai_chat(body, of_format);
    if (const auto* request = std::get_if<OpenAiChatRequest>(&chat)) {
      check_accepted(request->common);
      for (const OpenAiItem& item : request->common.items) {
        HADAL_CHECK(!(item.grammar && request->opened_thinking) || item.request.grammar_after_token == 3);
      }
    } else {
      check_refused(std::get<FieldError>(chat));
    }
  });
  return 0;
}
