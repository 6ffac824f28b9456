#include "server/openai/openai_completions.h"

#include <utility>

#include "server/json/json_writer.h"
#include "server/openai/openai_route.h"

namespace hadal::server {
CompletionAnswer::CompletionAnswer(const OpenAiCompletionRequest& request, const Tokenizer* tokenizer,
                                   bool cache_report)
    : OpenAiChoices(request.common, "text_completion", cache_report, false), logprobs_(request.logprobs) {
  const std::vector<OpenAiItem>& items = request.common.items;
  choices_.reserve(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    Choice& choice = choices_.emplace_back(Choice{.begin = begin_choice(i) + ",\"text\":",
                                                  .echo = {},
                                                  .logprobs = {tokenizer, request.skip_special_tokens}});
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
}

void CompletionAnswer::add(size_t i, GenerationDelta delta, SseStream& stream) {
  Choice& choice = choices_[i];
  if (logprobs_) {
    choice.logprobs.add(delta.prompt_logprobs);
    choice.logprobs.add(delta.logprobs);
  }
  if (delta.has_more) return;
  usage().update(i, delta);
  if (!in_stream()) {  // its only delta is its last
    std::string json;
    append_choice(json, choice, delta);
    json += '}';
    return set_choice(i, std::move(json));
  }
  json_.clear();
  append_choice(json_, choice, delta);
  send_choice(i, json_, stream);
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
