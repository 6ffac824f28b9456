#include "server/request_log.h"

#include "base/log.h"
#include "server/json_writer.h"
#include "text/stop_search.h"

namespace hadal::server {
namespace {

constexpr size_t kShortBytes = 2048;  // length of a text at level 2

}  // namespace

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

void log_request_start(const ServerContext& context, const GenerationRequest& request) {
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
  if (level >= 2 && context.tokenizer != nullptr) {
    std::string text;
    append_json_string(text, context.tokenizer->decode(request.input_ids, false));
    more += " prompt=";
    more += level == 2 ? utf8_prefix(text, kShortBytes) : text;
  }
  log_info("request received rid={} prompt_tokens={} max_new_tokens={} stream={}{}", request.rid,
           request.input_ids.size(), request.sampling.max_new_tokens, request.stream, more);
}

void log_request_end(const ServerContext& context, std::string_view rid, const GenerationDelta& last,
                     std::string_view text_json) {
  const int level = context.options.log_requests_level;
  if (level < 0) return;
  std::string more;
  if (level >= 2)
    more = fmt::format(" text=\"{}\"", level == 2 ? utf8_prefix(text_json, kShortBytes) : text_json);
  log_info(
      "request finished rid={} finish_reason={} prompt_tokens={} cached_tokens={} completion_tokens={} "
      "queue_s={:.4f} e2e_s={:.4f}{}",
      rid, finish_name(last.finish_reason), last.prompt_tokens, last.cached_tokens, last.completion_tokens,
      last.timings.queue_s, last.e2e_s, more);
}

}  // namespace hadal::server
