// Parses the bodies of Ollama's /api/chat and /api/generate. The functions are pure functions of the body and
// the limits. docs/ollama.md says how each field is read.
#pragma once

#include <string_view>
#include <variant>

#include "server/openai/openai_chat_request.h"
#include "server/openai/openai_request.h"

namespace hadal::server {

struct OllamaRequest : OpenAiChatRequest {
  bool is_chat = false;  // the answer has a message; otherwise it has a response
  // The body has no messages or no prompt. With such a body a client asks whether the model is loaded. There
  // are no items then, so nothing is generated.
  bool loads_only = false;
};

// Errors name the field, its value and what is allowed. Images are kUnsupported.
std::variant<OllamaRequest, FieldError> parse_ollama_chat(std::string_view body, const OpenAiLimits& limits);
std::variant<OllamaRequest, FieldError> parse_ollama_generate(std::string_view body,
                                                              const OpenAiLimits& limits);

}  // namespace hadal::server
