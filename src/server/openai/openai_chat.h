// Answers /v1/chat/completions: turns the text of generations into messages, whole or as events. It runs on
// I/O threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/generation/chat_choice_text.h"
#include "server/generation/reasoning_count.h"
#include "server/openai/openai_chat_request.h"
#include "server/openai/openai_choices.h"
#include "server/router.h"

namespace hadal::server {

class ChatAnswer final : public OpenAiChoices {
 public:
  ChatAnswer(const OpenAiChatRequest& request, const Tokenizer& tokenizer, bool cache_report);
  void add(size_t i, GenerationDelta delta, SseStream& stream) override;

 private:
  struct Choice {
    ChatChoiceText text;
    ReasoningCount reasoning;
    std::string begin;     // beginning of an event, with "delta":{ as its end
    std::string logprobs;  // rendered, not sent yet
    bool role_sent = false;
  };
  void stream_piece(size_t i, const ChatChoiceText::Piece& piece, SseStream& stream);
  void send(size_t i, const GenerationDelta* last, std::string_view finish, SseStream& stream);
  void begin_event(size_t i, const char* role);
  void append_logprobs(Choice& choice);

  const Tokenizer& tokenizer_;
  bool logprobs_;
  std::vector<Choice> choices_;
  std::string json_;  // the event being written
};

void add_openai_chat_routes(Router& router, ServerContext& context);

}  // namespace hadal::server
