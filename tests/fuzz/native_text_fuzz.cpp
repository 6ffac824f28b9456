// Fuzzes bodies of /separate_reasoning and /parse_function_call. An answer has the status 200 or 400 and is
// JSON that can be parsed. Reasoning and text together are no longer than the text from which they were cut.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <boost/json.hpp>

#include "base/check.h"
#include "server/native/native_text.h"
#include "unit_limit.h"

namespace {

using namespace hadal;
using namespace hadal::server;
namespace json = boost::json;

json::value answer_of(const HttpResponse& response) {
  HADAL_CHECK(response.status == 200 || response.status == 400, "{}", response.body);
  const json::value answer = json::parse(response.body);
  HADAL_CHECK(response.status == 200 || !answer.at("error").at("message").as_string().empty());
  return answer;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::UnitLimit limit_of_time(3.0);
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const ChatFormat format : {ChatFormat::kR1, ChatFormat::kV31, ChatFormat::kV32}) {
    const TextParsers parsers{.chat_format = format};
    const HttpResponse split = separate_reasoning_response(body, parsers);
    const json::value parts = answer_of(split);
    if (split.status == 200) {
      HADAL_CHECK(parts.at("reasoning_text").as_string().size() + parts.at("text").as_string().size() <=
                  size * 3);
    }
    const HttpResponse called = parse_function_call_response(body, parsers);
    const json::value calls = answer_of(called);
    if (called.status != 200) continue;
    HADAL_CHECK(calls.at("normal_text").is_string());
    for (const json::value& call : calls.at("calls").as_array())
      HADAL_CHECK(!call.at("name").as_string().empty());
  }
  return 0;
}
