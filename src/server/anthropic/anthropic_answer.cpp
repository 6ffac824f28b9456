#include "server/anthropic/anthropic_answer.h"

#include <utility>

#include <boost/json.hpp>

#include "server/json/json_fields.h"
#include "server/json/json_writer.h"
#include "server/openai/openai_json.h"
#include "server/openai/openai_route.h"

namespace hadal::server {
namespace {

std::string message_head_of(const OpenAiRequest& request) {
  std::string out = "{\"id\":";
  append_json_string(out, request.id);
  out += ",\"type\":\"message\",\"role\":\"assistant\",\"model\":";
  append_json_string(out, request.model);
  return out;
}

std::string tool_id(std::string_view call_id) {
  constexpr std::string_view kPrefix = "call_";
  if (call_id.starts_with(kPrefix)) call_id.remove_prefix(kPrefix.size());
  return "toolu_" + std::string(call_id);
}

void append_tool_begin(std::string& out, const ToolCallDelta& call) {
  out += "{\"type\":\"tool_use\",\"id\":";
  append_json_string(out, tool_id(call.id));
  out += ",\"name\":";
  append_json_string(out, call.name);
  out += ",\"input\":";
}

// Anthropic's API requires that an input is an object. So arguments that broke off become a string in an
// object, under the name that Anthropic's documentation proposes.
void append_input(std::string& out, const std::string& arguments) {
  if (parse_json_object(arguments).ok()) {
    out += arguments;
    return;
  }
  out += "{\"INVALID_JSON\":";
  append_json_string(out, arguments);
  out += '}';
}

}  // namespace

AnthropicAnswer::AnthropicAnswer(const AnthropicRequest& request)
    : stream_mode_(request.common.stream),
      omit_thinking_(request.omit_thinking),
      id_(request.common.id),
      head_(message_head_of(request.common)),
      text_(request.parsing) {}

void AnthropicAnswer::add(size_t, GenerationDelta delta, SseStream& stream) {
  if (delta.has_more) return;
  const bool ends = delta.finish_reason != FinishReason::kNone;
  const ChatChoiceText::Piece piece = text_.append(std::exchange(delta.text, {}), ends);
  delta.token_ids.clear();
  last_ = std::move(delta);
  if (!stream_mode_) return keep_whole(piece);
  if (!std::exchange(begun_, true)) begin_message(stream);
  stream_piece(piece, stream);
}

void AnthropicAnswer::begin_message(SseStream& stream) {
  json_ = "{\"type\":\"message_start\",\"message\":";
  json_ += head_;
  json_ += ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null";
  append_usage(json_);
  json_ += "}}";
  stream.event("message_start", json_);
  stream.event("ping", "{\"type\":\"ping\"}");
}

void AnthropicAnswer::stream_piece(const ChatChoiceText::Piece& piece, SseStream& stream) {
  if (!piece.reasoning.empty()) {
    if (block_ != Block::kThinking)
      open(Block::kThinking, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}", stream);
    if (!omit_thinking_) send_delta(piece.reasoning, stream);
  }
  // Deltas that continue a call belong to the open block, so they precede the text after that call.
  size_t i = 0;
  for (; i < piece.calls.size() && piece.calls[i].id.empty(); ++i)
    send_delta(piece.calls[i].arguments, stream);
  if (!piece.content.empty()) {
    if (block_ != Block::kText) open(Block::kText, "{\"type\":\"text\",\"text\":\"\"}", stream);
    send_delta(piece.content, stream);
  }
  for (; i < piece.calls.size(); ++i) {
    if (!piece.calls[i].id.empty()) open_tool(piece.calls[i], stream);
    if (!piece.calls[i].arguments.empty()) send_delta(piece.calls[i].arguments, stream);
  }
}

void AnthropicAnswer::open(Block block, std::string_view content_block, SseStream& stream) {
  close(stream);
  block_ = block;
  ++index_;
  json_ = "{\"type\":\"content_block_start\",\"index\":";
  append_json_number(json_, index_);
  json_ += ",\"content_block\":";
  json_ += content_block;
  json_ += '}';
  stream.event("content_block_start", json_);
  delta_begin_ = "{\"type\":\"content_block_delta\",\"index\":";
  append_json_number(delta_begin_, index_);
  delta_begin_ += ",\"delta\":";
  delta_begin_ += block == Block::kThinking ? "{\"type\":\"thinking_delta\",\"thinking\":"
                  : block == Block::kText   ? "{\"type\":\"text_delta\",\"text\":"
                                            : "{\"type\":\"input_json_delta\",\"partial_json\":";
}

void AnthropicAnswer::open_tool(const ToolCallDelta& call, SseStream& stream) {
  std::string block;
  append_tool_begin(block, call);
  block += "{}}";
  open(Block::kTool, block, stream);
}

void AnthropicAnswer::send_delta(std::string_view text, SseStream& stream) {
  json_ = delta_begin_;
  append_json_string(json_, text);
  json_ += "}}";
  stream.event("content_block_delta", json_);
}

void AnthropicAnswer::close(SseStream& stream) {
  if (block_ == Block::kNone) return;
  if (block_ == Block::kThinking) {
    json_ = "{\"type\":\"content_block_delta\",\"index\":";
    append_json_number(json_, index_);
    json_ += ",\"delta\":{\"type\":\"signature_delta\",\"signature\":";
    append_json_string(json_, id_);
    json_ += "}}";
    stream.event("content_block_delta", json_);
  }
  json_ = "{\"type\":\"content_block_stop\",\"index\":";
  append_json_number(json_, index_);
  json_ += '}';
  stream.event("content_block_stop", json_);
  block_ = Block::kNone;
}

void AnthropicAnswer::end_stream(SseStream& stream) {
  close(stream);
  json_ = "{\"type\":\"message_delta\",\"delta\":{";
  append_stop(json_);
  json_ += '}';
  append_usage(json_);
  json_ += '}';
  stream.event("message_delta", json_);
  stream.event("message_stop", "{\"type\":\"message_stop\"}");
}

void AnthropicAnswer::fail_stream(int status, std::string_view message, SseStream& stream) {
  stream.event("error", error_event(ErrorStyle::kAnthropic, status, message));
}

// An answer in one piece has only one delta, the last.
void AnthropicAnswer::keep_whole(const ChatChoiceText::Piece& piece) {
  const auto begin = [&](std::string_view block) {
    if (!content_.empty()) content_ += ',';
    content_ += block;
  };
  if (!piece.reasoning.empty()) {
    begin("{\"type\":\"thinking\",\"thinking\":");
    append_json_string(content_, omit_thinking_ ? std::string_view() : piece.reasoning);
    content_ += ",\"signature\":";
    append_json_string(content_, id_);
    content_ += '}';
  }
  if (!piece.content.empty()) {
    begin("{\"type\":\"text\",\"text\":");
    append_json_string(content_, piece.content);
    content_ += '}';
  }
  for (const ToolCallDelta& call : piece.calls) {
    begin({});
    append_tool_begin(content_, call);
    append_input(content_, call.arguments);
    content_ += '}';
  }
}

std::string AnthropicAnswer::whole() {
  std::string out;
  out.reserve(head_.size() + content_.size() + kTailBytes);
  out += head_;
  out += ",\"content\":[";
  out += content_;
  out += "],";
  append_stop(out);
  append_usage(out);
  out += '}';
  return out;
}

// Appends "stop_reason":…,"stop_sequence":…
void AnthropicAnswer::append_stop(std::string& out) const {
  const bool calls = text_.has_whole_calls();  // calls that broke off cannot be executed
  std::string_view reason = "abort";
  switch (last_.finish_reason) {
    case FinishReason::kStopToken:
      reason = calls ? "tool_use" : "end_turn";
      break;
    case FinishReason::kStopCondition:
      reason = calls ? "tool_use" : "stop_sequence";
      break;
    case FinishReason::kLength:
      reason = "max_tokens";
      break;
    case FinishReason::kNone:
    case FinishReason::kAbort:
      break;
  }
  out += "\"stop_reason\":\"";
  out += reason;
  out += "\",\"stop_sequence\":";
  if (last_.finish_reason == FinishReason::kStopCondition) {
    append_json_string(out, last_.matched);
  } else {
    out += "null";
  }
}

// Appends ,"usage":{…}  Tokens from the cache are counted separately, as in Anthropic's API.
void AnthropicAnswer::append_usage(std::string& out) const {
  out += ",\"usage\":{\"input_tokens\":";
  append_json_number(out, last_.prompt_tokens - last_.cached_tokens);
  out += ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":";
  append_json_number(out, last_.cached_tokens);
  out += ",\"output_tokens\":";
  append_json_number(out, last_.completion_tokens);
  out += '}';
}

void add_anthropic_routes(Router& router, ServerContext& context) {
  add_openai_route(
      router, context, "/v1/messages", parse_anthropic_messages,
      [](const AnthropicRequest& request) { return std::make_unique<AnthropicAnswer>(request); },
      ErrorStyle::kAnthropic);
  router.add(
      {.method = "POST",
       .path = "/v1/messages/count_tokens",
       .style = ErrorStyle::kAnthropic,
       .handler = [&context](std::shared_ptr<HttpExchange> exchange) {
         const OpenAiLimits limits = openai_limits(context, exchange->request());
         parse_body(
             context, std::move(exchange), ErrorStyle::kAnthropic,
             [limits](std::string_view body) { return count_anthropic_tokens(body, limits); },
             [](const std::shared_ptr<HttpExchange>& client, std::variant<int64_t, FieldError> counted) {
               if (const FieldError* error = std::get_if<FieldError>(&counted))
                 return client->respond(error_response(ErrorStyle::kAnthropic, error->status, error->field));
               HttpResponse response;
               response.body = fmt::format("{{\"input_tokens\":{}}}", std::get<int64_t>(counted));
               client->respond(std::move(response));
             });
       }});
}

}  // namespace hadal::server
