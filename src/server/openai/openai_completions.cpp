#include "server/openai/openai_completions.h"

#include <utility>

#include "server/json/json_writer.h"
#include "server/openai/openai_route.h"

namespace hadal::server {
CompletionAnswer::CompletionAnswer(const OpenAiCompletionRequest& request, const Tokenizer* tokenizer,
                                   bool cache_report)
    : stream_mode_(request.common.stream),
      include_usage_(request.common.include_usage),
      continuous_usage_(request.common.continuous_usage),
      logprobs_(request.logprobs),
      head_(openai_head(request.common.id, "text_completion", request.common.model)),
      usage_(prompts_of(request.common), cache_report, false) {
  const std::vector<OpenAiItem>& items = request.common.items;
  choices_.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    Choice& choice = choices_.emplace_back(
        Choice{.begin = {}, .echo = {}, .logprobs = {tokenizer, request.skip_special_tokens}, .json = {}});
    choice.begin = (stream_mode_ ? head_ : std::string()) + "{\"index\":";
    append_json_number(choice.begin, static_cast<int64_t>(i));
    choice.begin += ",\"text\":";
    if (!request.echo) continue;
    choice.echo = request.echo_texts[items[i].prompt];
    if (logprobs_) choice.logprobs.add_unpredicted(items[i].request.input_ids.front());
  }
}

void CompletionAnswer::append_choice(std::string& out, Choice& choice, const GenerationDelta& delta) {
  out += choice.begin;
  if (choice.echo.empty()) {
    append_json_string(out, delta.text);
  } else {
    append_json_string(out, choice.echo + delta.text);
    choice.echo.clear();
  }
  out += ",\"logprobs\":";
  if (logprobs_) {
    choice.logprobs.append_json(out);
  } else {
    out += "null";
  }
  append_finish(out, delta);
  out += '}';
}

void CompletionAnswer::add(size_t i, GenerationDelta delta, SseStream& stream) {
  Choice& choice = choices_[i];
  if (logprobs_) {
    choice.logprobs.add(delta.prompt_logprobs);
    choice.logprobs.add(delta.logprobs);
  }
  if (delta.has_more) return;
  usage_.update(i, delta);
  if (!stream_mode_) {  // its only delta is its last
    append_choice(choice.json, choice, delta);
    return;
  }
  json_.clear();
  append_choice(json_, choice, delta);
  json_ += ']';
  if (continuous_usage_) {
    usage_.append_choice(json_, i);
  } else if (include_usage_) {
    json_ += ",\"usage\":null";
  }
  json_ += '}';
  stream.event(json_);
}

void CompletionAnswer::end_stream(SseStream& stream) {
  if (include_usage_) stream.event(openai_tail(std::move(head_), usage_));
}

std::string CompletionAnswer::whole() {
  std::string out = std::move(head_);
  size_t bytes = out.size() + kTailBytes;
  for (const Choice& choice : choices_) bytes += choice.json.size() + 1;
  out.reserve(bytes);
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (i > 0) out += ',';
    out += choices_[i].json;
  }
  return openai_tail(std::move(out), usage_, ",\"metadata\":{\"weight_version\":\"default\"}");
}

void add_openai_completion_routes(Router& router, ServerContext& context) {
  for (const std::string_view path : {"/v1/completions", "/beta/completions", "/beta/v1/completions"}) {
    add_openai_route(router, context, path, parse_openai_completion,
                     [&context](const OpenAiCompletionRequest& request) {
                       return std::make_unique<CompletionAnswer>(request, context.tokenizer,
                                                                 context.options.enable_cache_report);
                     });
  }
}

}  // namespace hadal::server
