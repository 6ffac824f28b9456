// Answers Ollama's /api/chat and /api/generate: objects with a message or a response, one per line in a
// stream. The last object has the times and token counts of the answer. It runs on I/O threads.
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

// Returns the answer to a request with loads_only, which says that the model is loaded.
std::string ollama_loaded(const OllamaRequest& request);

}  // namespace hadal::server
