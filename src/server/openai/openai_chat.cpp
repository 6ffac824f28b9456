#include "server/openai/openai_chat.h"

#include <utility>

#include "server/json/json_writer.h"
#include "server/openai/openai_route.h"

namespace hadal::server {
namespace {

void append_call_head(std::string& out, const ToolCallDelta& call) {
  out += "\"id\":";
  append_json_string(out, call.id);
  out += ",\"type\":\"function\",\"function\":{\"name\":";
  append_json_string(out, call.name);
  out += ",\"arguments\":";
  append_json_string(out, call.arguments);
  out += "}}";
}

// Writes the calls of a whole answer, which have no index.
void append_calls(std::string& out, const std::vector<ToolCallDelta>& calls) {
  for (size_t i = 0; i < calls.size(); ++i) {
    out += i == 0 ? "[{" : ",{";
    append_call_head(out, calls[i]);
  }
  out += ']';
}

// Writes calls in the form of events: after its first delta a call has only its index and more of its
// arguments.
void append_call_deltas(std::string& out, const std::vector<ToolCallDelta>& calls) {
  for (size_t i = 0; i < calls.size(); ++i) {
    out += i == 0 ? "[{\"index\":" : ",{\"index\":";
    append_json_number(out, int64_t{calls[i].index});
    out += ',';
    if (!calls[i].name.empty()) {
      append_call_head(out, calls[i]);
      continue;
    }
    out += "\"function\":{\"arguments\":";
    append_json_string(out, calls[i].arguments);
    out += "}}";
  }
  out += ']';
}

// If a call broke off, the finish reason is not "tool_calls", because such calls cannot be executed.
std::string_view finish_word(const GenerationDelta& delta, const ChatChoiceText& text) {
  const bool stopped =
      delta.finish_reason == FinishReason::kStopToken || delta.finish_reason == FinishReason::kStopCondition;
  return stopped && text.has_whole_calls() ? "tool_calls" : std::string_view();
}

// This ends the delta of an event without content.
constexpr std::string_view kNoContent = "\"content\":null,\"reasoning_content\":null,\"tool_calls\":null}";

}  // namespace

ChatAnswer::ChatAnswer(const OpenAiChatRequest& request, const Tokenizer& tokenizer, bool cache_report)
    : OpenAiChoices(request.common, request.common.stream ? "chat.completion.chunk" : "chat.completion",
                    cache_report, true),
      tokenizer_(tokenizer),
      logprobs_(request.logprobs) {
  const size_t count = request.common.items.size();
  choices_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    Choice& choice =
        choices_.emplace_back(Choice{.text = ChatChoiceText(request.parsing),
                                     .reasoning = ReasoningCount(tokenizer, request.opened_thinking),
                                     .begin = begin_choice(i)});
    choice.begin +=
        in_stream() ? ",\"delta\":{\"role\":" : ",\"message\":{\"role\":\"assistant\",\"content\":";
  }
}

void ChatAnswer::add(size_t i, GenerationDelta delta, SseStream& stream) {
  Choice& choice = choices_[i];
  if (logprobs_) append_chat_logprobs(choice.logprobs, tokenizer_, delta.logprobs);
  if (delta.has_more) return;
  usage().update(i, delta);
  choice.reasoning.add(delta);
  usage().set_reasoning_tokens(i, choice.reasoning.tokens());
  const bool last = delta.finish_reason != FinishReason::kNone;
  const ChatChoiceText::Piece piece = choice.text.append(std::move(delta.text), last);
  if (in_stream()) {
    stream_piece(i, piece, stream);
    if (!last) return;
    begin_event(i, "null");
    json_ += kNoContent;
    send(i, &delta, finish_word(delta, choice.text), stream);
    return;
  }
  // If the answer comes in one piece, its only delta is the last.
  std::string out = std::move(choice.begin);
  if (piece.content.empty() && !piece.calls.empty()) {
    out += "null";
  } else {
    append_json_string(out, piece.content);
  }
  out += ",\"reasoning_content\":";
  if (piece.reasoning.empty()) {
    out += "null";
  } else {
    append_json_string(out, piece.reasoning);
  }
  out += ",\"tool_calls\":";
  if (piece.calls.empty()) {
    out += "null";
  } else {
    append_calls(out, piece.calls);
  }
  out += "},\"logprobs\":";
  json_.clear();
  append_logprobs(choice);
  out += json_;
  append_finish(out, delta, finish_word(delta, choice.text));
  out += '}';
  set_choice(i, std::move(out));
}

void ChatAnswer::begin_event(size_t i, const char* role) {
  json_.assign(choices_[i].begin);
  json_ += role;
  json_ += ',';
}

void ChatAnswer::append_logprobs(Choice& choice) {
  if (!logprobs_ || (in_stream() && choice.logprobs.empty())) {
    json_ += "null";
    return;
  }
  json_ += "{\"content\":[";
  json_ += choice.logprobs;
  json_ += "]}";
  choice.logprobs.clear();
}

// Ends and sends the event in json_, whose delta is complete.
void ChatAnswer::send(size_t i, const GenerationDelta* last, std::string_view finish, SseStream& stream) {
  json_ += ",\"logprobs\":";
  append_logprobs(choices_[i]);
  if (last != nullptr) {
    append_finish(json_, *last, finish);
  } else {
    json_ += ",\"finish_reason\":null,\"matched_stop\":null";
  }
  send_choice(i, json_, stream);
}

void ChatAnswer::stream_piece(size_t i, const ChatChoiceText::Piece& piece, SseStream& stream) {
  Choice& choice = choices_[i];
  if (!choice.role_sent) {
    choice.role_sent = true;
    begin_event(i, "\"assistant\"");
    json_ += "\"content\":\"\",\"reasoning_content\":null,\"tool_calls\":null}";
    std::string waiting;
    waiting.swap(choice.logprobs);  // they belong to the events with text, which follow
    send(i, nullptr, {}, stream);
    choice.logprobs.swap(waiting);
  }
  if (!piece.reasoning.empty()) {
    begin_event(i, "null");
    json_ += "\"content\":null,\"reasoning_content\":";
    append_json_string(json_, piece.reasoning);
    json_ += ",\"tool_calls\":null}";
    send(i, nullptr, {}, stream);
  }
  if (!piece.content.empty()) {
    begin_event(i, "null");
    json_ += "\"content\":";
    append_json_string(json_, piece.content);
    json_ += ",\"reasoning_content\":null,\"tool_calls\":null}";
    send(i, nullptr, {}, stream);
  }
  if (!piece.calls.empty()) {
    begin_event(i, "null");
    json_ += "\"content\":null,\"reasoning_content\":null,\"tool_calls\":";
    append_call_deltas(json_, piece.calls);
    json_ += '}';
    send(i, nullptr, {}, stream);
  }
}

void add_openai_chat_routes(Router& router, ServerContext& context) {
  // Clients derive the paths without "v1" from DeepSeek's base URLs.
  for (const std::string_view path :
       {"/v1/chat/completions", "/chat/completions", "/beta/chat/completions", "/beta/v1/chat/completions"}) {
    add_openai_route(router, context, path, parse_openai_chat, [&context](const OpenAiChatRequest& request) {
      return std::make_unique<ChatAnswer>(request, *context.tokenizer, context.options.enable_cache_report);
    });
  }
}

}  // namespace hadal::server
