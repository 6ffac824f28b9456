// Parses the bodies of OpenAI's /v1/responses and /v1/responses/input_tokens. They are pure functions of the
// body, the limits and what is stored. Beside the fields of that API, those of the other bodies that have no
// counterpart there work too (min_p, seed, cache_salt and others: read_openai_fields).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/openai/openai_chat_request.h"
#include "server/responses/response_store.h"

namespace hadal::server {

struct ResponsesRequest : OpenAiChatRequest {
  std::string echo;   // members of the response that repeat the request: ,"instructions":…,"metadata":…
  bool store = true;  // the response may be continued and read again
  Conversation earlier;               // what it continues, with its own salt
  std::vector<ChatMessage> messages;  // what it adds to that, if it is to be stored
};

// `owner` is whose responses previous_response_id may name. Errors name the field, its value and what is
// allowed.
std::variant<ResponsesRequest, FieldError> parse_responses(std::string_view body, const OpenAiLimits& limits,
                                                           const ResponseStore& store,
                                                           std::string_view owner);

// Returns the number of tokens of the prompt; no place is taken.
std::variant<int64_t, FieldError> count_responses_tokens(std::string_view body, const OpenAiLimits& limits,
                                                         const ResponseStore& store, std::string_view owner);

}  // namespace hadal::server
