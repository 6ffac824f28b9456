#include "server/native/native_text.h"

#include <utility>

#include <boost/json.hpp>

#include "server/admission/memory_costs.h"
#include "server/generation/whole_calls.h"
#include "server/json/json_fields.h"
#include "server/json/json_writer.h"
#include "server/openai/openai_messages.h"
#include "text/chat/reasoning_parser.h"
#include "text/chat/tool_call_parser.h"

namespace hadal::server {
namespace {

// The text is copied from the body, cut into parts, and written as JSON.
constexpr size_t kCopies = 3;

void read_text(FieldReader& reader, MemoryCharge& reading, std::string& text) {
  if (!reader.has("text")) reader.fail("text", "is missing; must be a string");
  reader.text("text", text);
  const Result<void> charged = reading.add(MemoryKind::kOutput, kCopies * kTextBytesPerByte * text.size());
  if (!charged.ok()) reader.refuse({}, charged.status());
}

// Reads the name of a parser. `resolve(name, chat_format)` finds it; "auto" needs a chat format.
template <typename Format>
Format read_parser(FieldReader& reader, std::string_view field, const std::string& fallback,
                   const TextParsers& parsers, Result<Format> (*resolve)(std::string_view, ChatFormat)) {
  std::string name = fallback;
  reader.text(field, name);
  if (!reader.ok()) return Format::kNone;
  if (name == "auto" && !parsers.chat_format) {
    reader.fail(field, "is auto, but the model has no known chat format; name a parser");
    return Format::kNone;
  }
  const Result<Format> format = resolve(name, parsers.chat_format.value_or(ChatFormat::kV31));
  if (format.ok()) return *format;
  reader.fail(field, format.status().message);
  return Format::kNone;
}

HttpResponse sglang_error_of(const FieldReader& reader) {
  return error_response(ErrorStyle::kSglang, reader.status(), reader.failed_field());
}

void append_call(std::string& out, const ToolCallDelta& call) {
  out += "{\"tool_index\":";
  append_json_number(out, int64_t{call.index});
  out += ",\"name\":";
  append_json_string(out, call.name);
  out += ",\"parameters\":";
  append_json_string(out, call.arguments);
  out += '}';
}

}  // namespace

HttpResponse separate_reasoning_response(std::string_view body, const TextParsers& parsers) {
  MemoryCharge reading(parsers.memory);
  const auto parsed = parse_json_object(body, &reading);
  if (!parsed.ok()) return error_response(ErrorStyle::kSglang, parsed.status());
  FieldReader reader(parsed.value());
  std::string text;
  read_text(reader, reading, text);
  const ReasoningFormat format =
      read_parser(reader, "reasoning_parser", parsers.reasoning, parsers, resolve_reasoning_format);
  if (!reader.ok()) return sglang_error_of(reader);
  // Without the prompt it is unknown how the text began. R1's texts always begin in reasoning.
  ReasoningParser parser({.format = format, .starts_in_reasoning = format == ReasoningFormat::kDeepSeekR1});
  ReasoningParser::Piece piece = parser.append(text);
  const ReasoningParser::Piece rest = parser.finish();
  piece.reasoning += rest.reasoning;
  piece.content += rest.content;
  HttpResponse response;
  response.body = "{\"reasoning_text\":";
  append_json_string(response.body, piece.reasoning);
  response.body += ",\"text\":";
  append_json_string(response.body, piece.content);
  response.body += '}';
  return response;
}

HttpResponse parse_function_call_response(std::string_view body, const TextParsers& parsers) {
  MemoryCharge reading(parsers.memory);
  const auto parsed = parse_json_object(body, &reading);
  if (!parsed.ok()) return error_response(ErrorStyle::kSglang, parsed.status());
  FieldReader reader(parsed.value());
  std::string text;
  read_text(reader, reading, text);
  ToolFields tools;
  read_tools(reader, tools);
  if (reader.ok() && tools.names.empty()) {
    reader.fail("tools", "is missing; must be the list of tools that the text may call");
  }
  ToolCallParser::Options options;
  options.format =
      read_parser(reader, "tool_call_parser", parsers.tool_calls, parsers, resolve_tool_call_format);
  if (!reader.ok()) return sglang_error_of(reader);
  options.tool_names = std::move(tools.names);
  ToolCallParser parser(std::move(options));
  ToolCallParser::Piece piece = parser.append(text);
  ToolCallParser::Piece rest = parser.finish();
  WholeCalls joined;
  std::vector<ToolCallDelta> calls = joined.append(std::move(piece.calls));
  for (ToolCallDelta& call : joined.append(std::move(rest.calls))) calls.push_back(std::move(call));
  if (std::optional<ToolCallDelta> call = joined.finish()) calls.push_back(std::move(*call));
  HttpResponse response;
  std::string& out = response.body;
  out = "{\"normal_text\":";
  append_json_string(out, piece.content + rest.content);
  out += ",\"calls\":[";
  for (size_t i = 0; i < calls.size(); ++i) {
    if (i > 0) out += ',';
    append_call(out, calls[i]);
  }
  out += "]}";
  return response;
}

}  // namespace hadal::server
