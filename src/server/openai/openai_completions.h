// Answers /v1/completions with the text of generations, whole or as events. It runs on I/O threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/openai/openai_choices.h"
#include "server/openai/openai_completion_request.h"
#include "server/router.h"

namespace hadal::server {

class CompletionAnswer final : public OpenAiChoices {
 public:
  // `tokenizer` may be null.
  CompletionAnswer(const OpenAiCompletionRequest& request, const Tokenizer* tokenizer, bool cache_report);
  void add(size_t i, GenerationDelta delta, SseStream& stream) override;

 private:
  struct Choice {
    std::string begin;  // beginning of an event, with "text": as its end
    std::string echo;   // the prompt, until it has been sent
    CompletionLogprobs logprobs;
  };
  // Appends the choice without its last bracket.
  void append_choice(std::string& out, Choice& choice, const GenerationDelta& delta);

  bool logprobs_;
  std::vector<Choice> choices_;
  std::string json_;  // the event being written
};

void add_openai_completion_routes(Router& router, ServerContext& context);

}  // namespace hadal::server
