// Answers Ollama's /api/chat and /api/generate: objects with a message or a response, one a line in a stream,
// of which the last says how much time and how many tokens the answer took. It runs on I/O threads.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/generation/chat_choice_text.h"
#include "server/generation/whole_calls.h"
#include "server/ollama/ollama_request.h"
#include "server/openai/openai_call.h"

namespace hadal::server {

class OllamaAnswer final : public OpenAiAnswer {
 public:
  OllamaAnswer(const OllamaRequest& request, const Tokenizer* tokenizer);
  void add(size_t i, GenerationDelta delta, SseStream& stream) override;
  void end_stream(SseStream& stream) override;
  void fail_stream(int status, std::string_view message, SseStream& stream) override;
  std::string whole() override { return std::move(json_); }
  ErrorStyle error_style() const override { return ErrorStyle::kOllama; }
  EventForm event_form() const override { return EventForm::kLines; }

 private:
  void join_calls(ChatChoiceText::Piece& piece, bool last);
  void append_object(const ChatChoiceText::Piece& piece);
  void append_end(const GenerationDelta& delta);

  const Tokenizer* tokenizer_;
  bool is_chat_;
  bool stream_mode_;
  bool has_logprobs_;
  std::string model_;
  ChatChoiceText text_;
  WholeCalls calls_;
  std::string logprobs_;  // rendered, not sent yet
  std::string json_;      // the object being written
};

// Returns the answer to a request that loads_only: the model is there.
std::string ollama_loaded(const OllamaRequest& request);

}  // namespace hadal::server
