// Fuzzes bodies of /generate. Accepted values must be within their bounds; errors must name the field and the
// reason, in JSON that can be parsed. Text prompts go through a tokenizer of single bytes.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "base/check.h"
#include "server/json/api_error.h"
#include "server/native/native_request.h"
#include "text/utf8.h"
#include "unit_limit.h"

namespace {

using namespace hadal;
using namespace hadal::server;

constexpr int64_t kContext = 64;
constexpr int64_t kVocab = 300;

// The vocabulary has three letters and no merges, so other bytes have no token.
constexpr std::string_view kTokenizer = R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2},"merges":[]},
  "added_tokens":[],"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":false},
  "decoder":{"type":"ByteLevel"}})";

void check_accepted(const NativeRequest& request) {
  HADAL_CHECK(!request.items.empty() && request.items.size() <= kMaxBatch);
  HADAL_CHECK(request.is_list || request.items.size() == 1);
  for (const NativeItem& item : request.items) {
    const GenerationRequest& one = item.request;
    const SamplingParams& params = one.sampling;
    HADAL_CHECK(!one.rid.empty());
    HADAL_CHECK(one.stream == request.stream);
    HADAL_CHECK(!one.input_ids.empty());
    for (const int32_t id : one.input_ids) HADAL_CHECK(id >= 0 && id < kVocab);
    HADAL_CHECK(static_cast<int64_t>(one.input_ids.size()) + params.max_new_tokens <= kContext);
    HADAL_CHECK(std::isfinite(params.temperature) && params.temperature >= 0);
    HADAL_CHECK(params.top_p > 0 && params.top_p <= 1);
    HADAL_CHECK(params.top_k == -1 || params.top_k >= 1);
    HADAL_CHECK(one.logprobs.top_num >= 0 && one.logprobs.top_num <= kMaxTopLogprobs);
    for (const auto& [id, bias] : params.logit_bias) HADAL_CHECK(id < kVocab && std::abs(bias) <= 100);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::UnitLimit limit_of_time(2.0);
  static const auto tokenizer = Tokenizer::from_json(kTokenizer);
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const bool with_tokenizer : {false, true}) {
    for (const bool truncate : {false, true}) {
      const NativeLimits limits{
          .prompt = {.context_length = kContext, .max_total_tokens = 4096, .allow_auto_truncate = truncate},
          .vocab_size = kVocab,
          .tokenizer = with_tokenizer && tokenizer.ok() ? tokenizer->get() : nullptr};
      const auto parsed = parse_native_request(body, limits);
      if (const auto* request = std::get_if<NativeRequest>(&parsed)) {
        check_accepted(*request);
        continue;
      }
      const FieldError& error = std::get<FieldError>(parsed);
      HADAL_CHECK(http_status(error.status.code) == 400, "{}", error.status.message);
      const HttpResponse response = error_response(ErrorStyle::kOpenAi, error.status, error.field);
      const boost::json::value answer = boost::json::parse(response.body);
      HADAL_CHECK(!answer.at("error").at("message").as_string().empty());
    }
  }
  return 0;
}
