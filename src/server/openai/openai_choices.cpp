#include "server/openai/openai_choices.h"

#include <cstdint>
#include <utility>

#include "server/json/json_writer.h"

namespace hadal::server {

OpenAiChoices::OpenAiChoices(const OpenAiRequest& request, std::string_view object, bool cache_report,
                             bool reasoning)
    : in_stream_(request.stream),
      include_usage_(request.include_usage),
      continuous_usage_(request.continuous_usage),
      head_(openai_head(request.id, object, request.model)),
      usage_(prompts_of(request), cache_report, reasoning),
      choices_(in_stream_ ? 0 : request.items.size()) {}

std::string OpenAiChoices::begin_choice(size_t i) const {
  std::string out = (in_stream_ ? head_ : std::string()) + "{\"index\":";
  append_json_number(out, static_cast<int64_t>(i));
  return out;
}

void OpenAiChoices::send_choice(size_t i, std::string& event, SseStream& stream) const {
  event += "}]";
  if (continuous_usage_) {
    usage_.append_choice(event, i);
  } else if (include_usage_) {
    event += ",\"usage\":null";
  }
  event += '}';
  stream.event(event);
}

void OpenAiChoices::end_stream(SseStream& stream) {
  if (include_usage_) stream.event(openai_tail(std::move(head_), usage_));
}

std::string OpenAiChoices::whole() {
  std::string out = std::move(head_);
  size_t bytes = out.size() + kTailBytes;
  for (const std::string& choice : choices_) bytes += choice.size() + 1;
  out.reserve(bytes);
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (i > 0) out += ',';
    out += choices_[i];
  }
  return openai_tail(std::move(out), usage_, ",\"metadata\":{\"weight_version\":\"default\"}");
}

}  // namespace hadal::server
