// Parses the bodies of OpenAI's /v1/responses and /v1/responses/input_tokens. The functions are pure
// functions of the body, the limits and the stored responses. Besides the fields of that API they read those
// of the other bodies that have no counterpart there (min_p, seed, cache_salt and others:
// read_openai_fields).
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
  Conversation earlier;               // the conversation that it continues, with its own salt
  std::vector<ChatMessage> messages;  // the messages that it adds to `earlier`, if it is to be stored
};

// previous_response_id may name only responses of `owner`. Errors name the field, its value and what is
// allowed.
std::variant<ResponsesRequest, FieldError> parse_responses(std::string_view body, const OpenAiLimits& limits,
                                                           const ResponseStore& store,
                                                           std::string_view owner);

// Returns the number of tokens of the prompt; no place is reserved.
std::variant<int64_t, FieldError> count_responses_tokens(std::string_view body, const OpenAiLimits& limits,
                                                         const ResponseStore& store, std::string_view owner);

}  // namespace hadal::server
