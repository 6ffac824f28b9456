// Parses the body of /v1/chat/completions. It is a pure function of the body and the limits.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/openai/openai_request.h"

namespace hadal::server {

inline constexpr int64_t kMaxChatTopLogprobs = 20;  // OpenAI's bound

// ChatParsing says how the text of each choice becomes a message.
struct ChatParsing {
  ReasoningFormat reasoning = ReasoningFormat::kNone;  // kNone: <think> stays in the content
  bool starts_in_reasoning = false;
  bool stream_reasoning = true;
  ToolCallFormat tool_calls = ToolCallFormat::kNone;  // kNone: tools are not used
  std::vector<std::string> tool_names;
  bool parallel_tool_calls = true;
};

struct OpenAiChatRequest {
  OpenAiRequest common;
  ChatParsing parsing;
  bool logprobs = false;
  bool opened_thinking = false;  // the prompt ends inside <think>, even if reasoning is not separated
};

// Reads logprobs and top_logprobs, which Ollama's API shares.
void read_chat_logprobs(FieldReader& reader, const RequestLimits& limits, LogprobOptions& out);

// Reads the fields of the body. Errors stay in `reader`; they name the field, its value and what is allowed.
void read_openai_chat(FieldReader& reader, const OpenAiLimits& limits, OpenAiChatRequest& out);

// Does the same for a body, with memory of its own.
std::variant<OpenAiChatRequest, FieldError> parse_openai_chat(std::string_view body,
                                                              const OpenAiLimits& limits);

}  // namespace hadal::server
