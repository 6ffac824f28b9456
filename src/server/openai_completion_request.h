// The body of /v1/completions → what is to be generated. A pure function of the body and the limits.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/openai_request.h"

namespace hadal::server {

struct OpenAiCompletionRequest {
  OpenAiRequest common;
  bool echo = false;
  bool logprobs = false;                // of the answer, and with echo of the prompt
  bool skip_special_tokens = true;      // as each item's
  std::vector<std::string> echo_texts;  // one a prompt, with echo
};

// Errors name the field, its value and what is allowed.
std::variant<OpenAiCompletionRequest, FieldError> parse_openai_completion(std::string_view body,
                                                                          const OpenAiLimits& limits);

}  // namespace hadal::server
