// Fuzzes bodies of OpenAI's /v1/responses and input_tokens. Accepted prompts must fit, the same body must
// count as many tokens as it has, the fields that repeat the request must be JSON, and errors must have a
// reason. Texts go through a tokenizer of single bytes, conversations through every format.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <boost/json.hpp>

#include "base/check.h"
#include "body_limits.h"
#include "server/json/api_error.h"
#include "server/responses/responses_request.h"
#include "unit_limit.h"

namespace {

using namespace hadal;
using namespace hadal::server;

constexpr int64_t kContext = 2048;

void check_refused(const FieldError& error) {
  HADAL_CHECK(http_status(error.status.code) == 400, "{}", error.status.message);
  const HttpResponse response = error_response(ErrorStyle::kOpenAi, error.status, error.field);
  const boost::json::value answer = boost::json::parse(response.body);
  HADAL_CHECK(!answer.at("error").at("message").as_string().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::UnitLimit limit_of_time(3.0);
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  ResponseStore store(1 << 20);
  ChatMessage said;
  said.role = "assistant";
  said.content = "b";
  store.put("resp_1", "", "{}", {}, {said});
  OpenAiLimits limits = fuzz::body_limits(kContext, 300);
  limits.tokenizer = fuzz::body_tokenizer();
  fuzz::for_each_format(limits, [&](OpenAiLimits of_format) {
    const auto response = parse_responses(body, of_format, store, "");
    const auto counted = count_responses_tokens(body, of_format, store, "");
    if (const auto* error = std::get_if<FieldError>(&counted)) check_refused(*error);
    if (const auto* error = std::get_if<FieldError>(&response)) {
      check_refused(*error);
      return;
    }
    const auto& accepted = std::get<ResponsesRequest>(response);
    HADAL_CHECK(boost::json::parse("{\"a\":0" + accepted.echo + "}").is_object());
    const OpenAiRequest& request = accepted.common;
    HADAL_CHECK(request.items.size() == 1 && !request.id.empty());
    const GenerationRequest& one = request.items.front().request;
    const auto prompt = static_cast<int64_t>(one.input_ids.size());
    HADAL_CHECK(prompt > 0 && prompt + one.sampling.max_new_tokens <= kContext);
    HADAL_CHECK(std::get<int64_t>(counted) == prompt);
  });
  return 0;
}
