// Parses the bodies of Anthropic's /v1/messages and /v1/messages/count_tokens. The functions are pure
// functions of the body and the limits. Besides Anthropic's fields they read those of OpenAI's bodies that
// have no counterpart there (min_p, seed, cache_salt and others: read_openai_fields).
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>

#include "server/openai/openai_chat_request.h"

namespace hadal::server {

struct AnthropicRequest : OpenAiChatRequest {
  bool omit_thinking = false;  // blocks of thinking are sent without text
};

// Errors name the field, its value and what is allowed.
std::variant<AnthropicRequest, FieldError> parse_anthropic_messages(std::string_view body,
                                                                    const OpenAiLimits& limits);

// Returns the number of tokens of the prompt. max_tokens may be absent, and no place is reserved.
std::variant<int64_t, FieldError> count_anthropic_tokens(std::string_view body, const OpenAiLimits& limits);

}  // namespace hadal::server
