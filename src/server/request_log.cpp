#include "server/request_log.h"

#include <algorithm>
#include <span>
#include <string>

#include "base/log.h"
#include "server/json/json_writer.h"
#include "text/stop/stop_search.h"

namespace hadal::server {
namespace {

constexpr int kLevelWithTexts = 2;
constexpr size_t kShortBytes = 2 << 10;  // of a text, at level 2
constexpr size_t kLongBytes = 64 << 10;  // of a text, at level 3

// Returns the prompt's first `max_bytes` as a JSON string, which is cut again because escapes lengthen it.
std::string prompt_json(const Tokenizer& tokenizer, std::span<const int32_t> ids, size_t max_bytes) {
  size_t count = 0;
  for (size_t bytes = 0; count < ids.size() && count <= max_bytes && bytes <= max_bytes; ++count)
    bytes += tokenizer.token_bytes(ids[count]).size();
  std::string json;
  append_json_string(json, utf8_prefix(tokenizer.decode(ids.first(count), false), max_bytes));
  return std::string(utf8_prefix(json, max_bytes));
}

}  // namespace

size_t log_text_bytes(const ServerContext& context) {
  const int level = context.options.log_requests_level;
  return level < kLevelWithTexts ? 0 : level == kLevelWithTexts ? kShortBytes : kLongBytes;
}

const char* finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStopToken:
    case FinishReason::kStopCondition:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kNone:
      break;
  }
  return "";
}

void log_request_start(const ServerContext& context, const GenerationRequest& request, LogRoom& room) {
  const int level = context.options.log_requests_level;
  if (level < 0) return;
  std::string more;
  if (level >= 1) {
    const SamplingParams& params = request.sampling;
    more += fmt::format(" temperature={:g} top_p={:g} top_k={} min_p={:g} stops={} grammar={} priority={}",
                        params.temperature, params.top_p, params.top_k, params.min_p,
                        request.stops == nullptr ? 0 : request.stops->size(), request.grammar != nullptr,
                        request.priority);
  }
  if (const size_t bytes = std::min(log_text_bytes(context), room.bytes);
      bytes > 0 && context.tokenizer != nullptr) {
    const std::string text = prompt_json(*context.tokenizer, request.input_ids, bytes);
    room.bytes -= text.size();
    more += " prompt=" + text;
  }
  log_info("request received rid={} prompt_tokens={} max_new_tokens={} stream={}{}", request.rid,
           request.input_ids.size(), request.sampling.max_new_tokens, request.stream, more);
}

void log_request_end(const ServerContext& context, std::string_view rid, const GenerationDelta& last,
                     std::string_view text_json) {
  const int level = context.options.log_requests_level;
  if (level < 0) return;
  std::string more;
  if (const size_t bytes = log_text_bytes(context); bytes > 0)
    more = fmt::format(" text=\"{}\"", utf8_prefix(text_json, bytes));
  log_info(
      "request finished rid={} finish_reason={} prompt_tokens={} cached_tokens={} completion_tokens={} "
      "queue_s={:.4f} e2e_s={:.4f}{}",
      rid, finish_name(last.finish_reason), last.prompt_tokens, last.cached_tokens, last.completion_tokens,
      last.timings.queue_s, last.e2e_s, more);
}

}  // namespace hadal::server
