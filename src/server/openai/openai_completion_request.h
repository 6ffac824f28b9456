// Parses the body of /v1/completions. It is a pure function of the body and the limits.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/openai/openai_request.h"

namespace hadal::server {

struct OpenAiCompletionRequest {
  OpenAiRequest common;
  bool echo = false;
  bool logprobs = false;                // for the answer, and for the prompt with echo
  bool skip_special_tokens = true;      // the same for each item
  std::vector<std::string> echo_texts;  // one per prompt, with echo
};

// Errors name the field, its value and what is allowed.
std::variant<OpenAiCompletionRequest, FieldError> parse_openai_completion(std::string_view body,
                                                                          const OpenAiLimits& limits);

}  // namespace hadal::server
