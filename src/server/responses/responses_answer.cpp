#include "server/responses/responses_answer.h"

#include <chrono>
#include <utility>

#include "server/json/json_writer.h"
#include "server/json/random_id.h"

namespace hadal::server {
namespace {

std::string response_head_of(const OpenAiRequest& request) {
  std::string out = "{\"id\":";
  append_json_string(out, request.id);
  out += ",\"object\":\"response\",\"created_at\":";
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  append_json_number(out, int64_t{std::chrono::duration_cast<std::chrono::seconds>(now).count()});
  out += ",\"model\":";
  append_json_string(out, request.model);
  return out;
}

void append_member(std::string& out, std::string_view name, int64_t value) {
  out += ",\"";
  out += name;
  out += "\":";
  append_json_number(out, value);
}

void append_member(std::string& out, std::string_view name, std::string_view text) {
  out += ",\"";
  out += name;
  out += "\":";
  append_json_string(out, text);
}

}  // namespace

ResponsesAnswer::ResponsesAnswer(ResponsesRequest& request, const Tokenizer& tokenizer,
                                 std::shared_ptr<ResponseStore> store, std::string owner)
    : id_(request.common.id),
      stream_mode_(request.common.stream),
      store_it_(request.store),
      head_(response_head_of(request.common)),
      echo_(std::move(request.echo)),
      text_(request.parsing),
      reasoning_(tokenizer, request.opened_thinking),
      store_(std::move(store)),
      owner_(std::move(owner)),
      earlier_(std::move(request.earlier)),
      messages_(std::move(request.messages)) {
  said_.role = "assistant";
}

void ResponsesAnswer::add(size_t, GenerationDelta delta, SseStream& stream) {
  if (delta.has_more) return;
  reasoning_.add(delta);
  const bool ends = delta.finish_reason != FinishReason::kNone;
  const ChatChoiceText::Piece piece = text_.append(std::exchange(delta.text, {}), ends);
  delta.token_ids.clear();
  last_ = std::move(delta);
  if (stream_mode_ && !std::exchange(begun_, true)) {
    const std::string begun = response("in_progress", {}, false);
    send_response("response.created", begun, stream);
    send_response("response.in_progress", begun, stream);
  }
  take(piece, stream);
  if (!stream_mode_) close(final_status(), stream);  // this delta was the only one
}

void ResponsesAnswer::take(const ChatChoiceText::Piece& piece, SseStream& stream) {
  if (!piece.reasoning.empty()) {
    if (item_ != Item::kReasoning) open(Item::kReasoning, nullptr, stream);
    append(piece.reasoning, stream);
  }
  // Deltas that continue a call belong to the open item, so they precede the text after that call.
  size_t i = 0;
  for (; i < piece.calls.size() && piece.calls[i].id.empty(); ++i) append(piece.calls[i].arguments, stream);
  if (!piece.content.empty()) {
    if (item_ != Item::kMessage) open(Item::kMessage, nullptr, stream);
    append(piece.content, stream);
  }
  for (; i < piece.calls.size(); ++i) {
    if (!piece.calls[i].id.empty()) open(Item::kCall, &piece.calls[i], stream);
    if (!piece.calls[i].arguments.empty()) append(piece.calls[i].arguments, stream);
  }
}

void ResponsesAnswer::open(Item item, const ToolCallDelta* call, SseStream& stream) {
  close("completed", stream);
  item_ = item;
  ++output_index_;
  if (call != nullptr) call_ = {.index = call->index, .id = call->id, .name = call->name, .arguments = {}};
  item_id_ = (item == Item::kReasoning ? "rs_" : item == Item::kMessage ? "msg_" : "fc_") + random_id();
  if (!stream_mode_) return;
  delta_begin_.clear();
  append_member(delta_begin_, "item_id", item_id_);
  append_member(delta_begin_, "output_index", output_index_);
  if (item != Item::kCall) delta_begin_ += ",\"content_index\":0";
  delta_begin_ += item == Item::kMessage ? ",\"logprobs\":[],\"delta\":" : ",\"delta\":";
  begin_event("response.output_item.added");
  append_member(json_, "output_index", output_index_);
  json_ += ",\"item\":";
  append_item(json_, "in_progress", {});
  send("response.output_item.added", stream);
  if (item != Item::kCall) send_part("response.content_part.added", {}, stream);
}

void ResponsesAnswer::append(std::string_view text, SseStream& stream) {
  item_text_ += text;
  if (!stream_mode_) return;
  const std::string_view name = item_ == Item::kReasoning ? "response.reasoning_text.delta"
                                : item_ == Item::kMessage ? "response.output_text.delta"
                                                          : "response.function_call_arguments.delta";
  begin_event(name);
  json_ += delta_begin_;
  append_json_string(json_, text);
  send(name, stream);
}

// Ends the open item, in a stream with the events for its end.
void ResponsesAnswer::close(std::string_view status, SseStream& stream) {
  if (item_ == Item::kNone) return;
  const bool is_broken = item_ == Item::kCall && !text_.has_whole_calls();
  if (is_broken) status = "incomplete";
  if (!output_.empty()) output_ += ',';
  const size_t begin = output_.size();
  append_item(output_, status, item_text_);
  if (stream_mode_) {
    const std::string_view name = item_ == Item::kReasoning ? "response.reasoning_text.done"
                                  : item_ == Item::kMessage ? "response.output_text.done"
                                                            : "response.function_call_arguments.done";
    begin_event(name);
    append_member(json_, "item_id", item_id_);
    append_member(json_, "output_index", output_index_);
    if (item_ == Item::kCall) {
      append_member(json_, "name", call_.name);
      append_member(json_, "arguments", item_text_);
    } else {
      json_ += item_ == Item::kMessage ? ",\"content_index\":0,\"logprobs\":[]" : ",\"content_index\":0";
      append_member(json_, "text", item_text_);
    }
    send(name, stream);
    if (item_ != Item::kCall) send_part("response.content_part.done", item_text_, stream);
    begin_event("response.output_item.done");
    append_member(json_, "output_index", output_index_);
    json_ += ",\"item\":";
    json_.append(output_, begin);
    send("response.output_item.done", stream);
  }
  // Arguments that broke off could not be rendered in the next request of the conversation, so such a call is
  // not stored.
  if (store_it_ && !is_broken) remember(std::exchange(item_text_, {}));
  item_text_.clear();
  item_ = Item::kNone;
}

// Adds the text of the open item to the message that is stored.
void ResponsesAnswer::remember(std::string text) {
  if (item_ == Item::kReasoning) {
    said_.reasoning_content += text;
  } else if (item_ == Item::kMessage) {
    said_.content += text;
  } else {
    said_.tool_calls.push_back({.id = call_.id, .name = call_.name, .arguments = std::move(text)});
  }
}

void ResponsesAnswer::append_part(std::string& out, std::string_view text) const {
  out += item_ == Item::kReasoning ? "{\"type\":\"reasoning_text\""
                                   : "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[]";
  append_member(out, "text", text);
  out += '}';
}

// Appends the open item. An item that has just begun has neither parts nor text.
void ResponsesAnswer::append_item(std::string& out, std::string_view status, std::string_view text) const {
  out += "{\"id\":";
  append_json_string(out, item_id_);
  append_member(out, "status", status);
  if (item_ == Item::kCall) {
    out += ",\"type\":\"function_call\"";
    append_member(out, "call_id", call_.id);
    append_member(out, "name", call_.name);
    append_member(out, "arguments", text);
    out += '}';
    return;
  }
  out += item_ == Item::kReasoning
             ? ",\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":null,\"content\":["
             : ",\"type\":\"message\",\"role\":\"assistant\",\"content\":[";
  if (!text.empty()) append_part(out, text);
  out += "]}";
}

void ResponsesAnswer::begin_event(std::string_view name) {
  json_ = "{\"type\":\"";
  json_ += name;
  json_ += "\",\"sequence_number\":";
  append_json_number(json_, sequence_++);
}

void ResponsesAnswer::send(std::string_view name, SseStream& stream) {
  json_ += '}';
  stream.event(name, json_);
}

void ResponsesAnswer::send_part(std::string_view name, std::string_view text, SseStream& stream) {
  begin_event(name);
  append_member(json_, "item_id", item_id_);
  append_member(json_, "output_index", output_index_);
  json_ += ",\"content_index\":0,\"part\":";
  append_part(json_, text);
  send(name, stream);
}

void ResponsesAnswer::send_response(std::string_view name, std::string_view response, SseStream& stream) {
  begin_event(name);
  json_ += ",\"response\":";
  json_ += response;
  send(name, stream);
}

// Returns the response object; `error` is an object, or empty. Only an ended response has a usage.
std::string ResponsesAnswer::response(std::string_view status, std::string_view error, bool ended) const {
  std::string out;
  constexpr size_t kFixedBytes = 512;
  out.reserve(head_.size() + echo_.size() + output_.size() + kFixedBytes);
  out += head_;
  append_member(out, "status", status);
  out += ",\"error\":";
  out += error.empty() ? "null" : error;
  out += ",\"incomplete_details\":";
  if (status != "incomplete") {
    out += "null";
  } else {
    out += last_.finish_reason == FinishReason::kLength ? "{\"reason\":\"max_output_tokens\"}"
                                                        : "{\"reason\":\"abort\"}";
  }
  out += echo_;
  out += ",\"output\":[";
  out += output_;
  out += "],\"usage\":";
  if (ended) {
    out += "{\"input_tokens\":";
    append_json_number(out, last_.prompt_tokens);
    out += ",\"input_tokens_details\":{\"cached_tokens\":";
    append_json_number(out, last_.cached_tokens);
    out += ",\"cache_write_tokens\":0}";
    append_member(out, "output_tokens", last_.completion_tokens);
    out += ",\"output_tokens_details\":{\"reasoning_tokens\":";
    append_json_number(out, reasoning_.tokens());
    out += '}';
    append_member(out, "total_tokens", last_.prompt_tokens + last_.completion_tokens);
    out += '}';
  } else {
    out += "null";
  }
  out += '}';
  return out;
}

std::string_view ResponsesAnswer::final_status() const {
  const bool cut =
      last_.finish_reason == FinishReason::kLength || last_.finish_reason == FinishReason::kAbort;
  return cut ? "incomplete" : "completed";
}

void ResponsesAnswer::keep(const std::string& response) {
  if (!store_it_) return;
  messages_.push_back(std::move(said_));
  store_->put(id_, owner_, response, std::move(earlier_), std::move(messages_));
}

void ResponsesAnswer::end_stream(SseStream& stream) {
  const std::string_view status = final_status();
  close(status, stream);
  const std::string all = response(status, {}, true);
  keep(all);
  send_response(status == "completed" ? "response.completed" : "response.incomplete", all, stream);
}

void ResponsesAnswer::fail_stream(int status, std::string_view message, SseStream& stream) {
  close("incomplete", stream);
  std::string error = "{\"code\":\"";
  error += status == 400 ? "invalid_prompt" : "server_error";
  error += "\",\"message\":";
  append_json_string(error, message);
  error += '}';
  send_response("response.failed", response("failed", error, true), stream);
}

std::string ResponsesAnswer::whole() {
  std::string all = response(final_status(), {}, true);
  keep(all);
  return all;
}

}  // namespace hadal::server
