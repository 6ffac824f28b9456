// Fuzzes bodies of Anthropic's /v1/messages and count_tokens. Accepted prompts must fit, the same body must
// count as many tokens as it has, and errors must have Anthropic's form. Texts go through a tokenizer of
// single bytes, conversations through every format.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <boost/json.hpp>

#include "base/check.h"
#include "body_limits.h"
#include "server/anthropic/anthropic_request.h"
#include "server/json/api_error.h"
#include "unit_limit.h"

namespace {

using namespace hadal;
using namespace hadal::server;

constexpr int64_t kContext = 2048;

void check_refused(const FieldError& error) {
  HADAL_CHECK(http_status(error.status.code) == 400, "{}", error.status.message);
  const HttpResponse response = error_response(ErrorStyle::kAnthropic, error.status, error.field);
  const boost::json::value answer = boost::json::parse(response.body);
  HADAL_CHECK(answer.at("type").as_string() == "error");
  HADAL_CHECK(!answer.at("error").at("message").as_string().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::UnitLimit limit_of_time(3.0);
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  OpenAiLimits limits = fuzz::body_limits(kContext, 300);
  limits.tokenizer = fuzz::body_tokenizer();
  fuzz::for_each_format(limits, [&](OpenAiLimits of_format) {
    const auto message = parse_anthropic_messages(body, of_format);
    const auto counted = count_anthropic_tokens(body, of_format);
    if (const auto* error = std::get_if<FieldError>(&counted)) check_refused(*error);
    if (const auto* error = std::get_if<FieldError>(&message)) {
      check_refused(*error);
      return;
    }
    const OpenAiRequest& request = std::get<AnthropicRequest>(message).common;
    HADAL_CHECK(request.items.size() == 1 && !request.id.empty());
    const GenerationRequest& one = request.items.front().request;
    const auto prompt = static_cast<int64_t>(one.input_ids.size());
    HADAL_CHECK(prompt > 0 && prompt + one.sampling.max_new_tokens <= kContext);
    HADAL_CHECK(std::get<int64_t>(counted) == prompt);
  });
  return 0;
}
