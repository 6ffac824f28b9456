// Answers OpenAI's /v1/responses: turns the text of a generation into a response of items (reasoning, a
// message, calls), whole or as events. It runs on I/O threads.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/generation/chat_choice_text.h"
#include "server/generation/reasoning_count.h"
#include "server/openai/openai_call.h"
#include "server/responses/response_store.h"
#include "server/responses/responses_request.h"

namespace hadal::server {

class ResponsesAnswer final : public OpenAiAnswer {
 public:
  // Moves everything but `common` out of the request. The complete response is put into `store` as one of
  // `owner`.
  ResponsesAnswer(ResponsesRequest& request, const Tokenizer& tokenizer, std::shared_ptr<ResponseStore> store,
                  std::string owner);
  void add(size_t i, GenerationDelta delta, SseStream& stream) override;
  void end_stream(SseStream& stream) override;
  // Ends with response.failed.
  void fail_stream(int status, std::string_view message, SseStream& stream) override;
  std::string whole() override;
  EventForm event_form() const override { return EventForm::kNamed; }

 private:
  enum class Item { kNone, kReasoning, kMessage, kCall };
  void take(const ChatChoiceText::Piece& piece, SseStream& stream);
  void open(Item item, const ToolCallDelta* call, SseStream& stream);
  void append(std::string_view text, SseStream& stream);
  void close(std::string_view status, SseStream& stream);
  void remember(std::string text);
  void append_item(std::string& out, std::string_view status, std::string_view text) const;
  void append_part(std::string& out, std::string_view text) const;
  void begin_event(std::string_view name);
  void send(std::string_view name, SseStream& stream);
  void send_part(std::string_view name, std::string_view text, SseStream& stream);
  void send_response(std::string_view name, std::string_view response, SseStream& stream);
  std::string response(std::string_view status, std::string_view error, bool ended) const;
  std::string_view final_status() const;
  void keep(const std::string& response);

  const std::string id_;
  const bool stream_mode_;
  const bool store_it_;
  const std::string head_;  // {"id":…,"object":"response","created_at":…,"model":…
  const std::string echo_;
  ChatChoiceText text_;
  ReasoningCount reasoning_;
  const std::shared_ptr<ResponseStore> store_;
  const std::string owner_;
  Conversation earlier_;
  std::vector<ChatMessage> messages_;
  GenerationDelta last_;  // without text and ids: the counts so far, and the finish reason
  std::string output_;    // the items that are complete
  ChatMessage said_;      // the same items as a message, if it is to be stored
  int64_t sequence_ = 0;  // number of the next event
  bool begun_ = false;
  Item item_ = Item::kNone;  // the kind of the open item
  int64_t output_index_ = -1;
  std::string item_id_;
  ToolCallDelta call_;       // of an open call: its id and name
  std::string item_text_;    // the text of the open item so far
  std::string delta_begin_;  // a delta event of the open item, from after the number to the text
  std::string json_;         // the event being written
};

}  // namespace hadal::server
