// Answers /v1/completions with the text of generations, whole or as events. It runs on I/O threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/openai/openai_call.h"
#include "server/openai/openai_completion_request.h"
#include "server/openai/openai_json.h"
#include "server/router.h"

namespace hadal::server {

class CompletionAnswer final : public OpenAiAnswer {
 public:
  // `tokenizer` may be null.
  CompletionAnswer(const OpenAiCompletionRequest& request, const Tokenizer* tokenizer, bool cache_report);
  void add(size_t i, GenerationDelta delta, SseStream& stream) override;
  void end_stream(SseStream& stream) override;
  std::string whole() override;

 private:
  struct Choice {
    std::string begin;  // beginning of an event, with "text": as its end
    std::string echo;   // the prompt, until it has been sent
    CompletionLogprobs logprobs;
    std::string json;  // for an answer in one piece
  };
  void append_choice(std::string& out, Choice& choice, const GenerationDelta& delta);

  bool stream_mode_;
  bool include_usage_;
  bool continuous_usage_;
  bool logprobs_;
  std::string head_;
  std::vector<Choice> choices_;
  OpenAiUsage usage_;
  std::string json_;
};

void add_openai_completion_routes(Router& router, ServerContext& context);

}  // namespace hadal::server
