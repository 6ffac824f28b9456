// Answers Anthropic's /v1/messages and /v1/messages/count_tokens: turns the text of a generation into a
// message of blocks, whole or as events. It runs on I/O threads.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/anthropic/anthropic_request.h"
#include "server/generation/chat_choice_text.h"
#include "server/openai/openai_call.h"
#include "server/router.h"

namespace hadal::server {

class AnthropicAnswer final : public OpenAiAnswer {
 public:
  explicit AnthropicAnswer(const AnthropicRequest& request);
  void add(size_t i, GenerationDelta delta, SseStream& stream) override;
  void end_stream(SseStream& stream) override;
  // Ends with the error alone, because the events of end_stream() report success.
  void fail_stream(int status, std::string_view message, SseStream& stream) override;
  std::string whole() override;
  ErrorStyle error_style() const override { return ErrorStyle::kAnthropic; }
  EventForm event_form() const override { return EventForm::kNamed; }

 private:
  enum class Block { kNone, kThinking, kText, kTool };
  void begin_message(SseStream& stream);
  void stream_piece(const ChatChoiceText::Piece& piece, SseStream& stream);
  void open(Block block, std::string_view content_block, SseStream& stream);
  void open_tool(const ToolCallDelta& call, SseStream& stream);
  void send_delta(std::string_view text, SseStream& stream);
  void close(SseStream& stream);
  void keep_whole(const ChatChoiceText::Piece& piece);
  void append_usage(std::string& out) const;
  void append_stop(std::string& out) const;

  const bool stream_mode_;
  const bool omit_thinking_;
  const std::string id_;    // also the signature of the answer's thinking
  const std::string head_;  // {"id":…,"type":"message","role":"assistant","model":…
  ChatChoiceText text_;
  // Without text and ids: the counts so far, the finish reason and the matched stop string.
  GenerationDelta last_;
  // These belong to a stream:
  bool begun_ = false;
  Block block_ = Block::kNone;  // the kind of the open block
  int64_t index_ = -1;          // the index of the open block
  std::string delta_begin_;     // the beginning of a delta event of the open block, up to its text
  std::string json_;            // the event being written
  // This belongs to an answer in one piece:
  std::string content_;  // the blocks of the content
};

void add_anthropic_routes(Router& router, ServerContext& context);

}  // namespace hadal::server
