// Serves SGLang's /separate_reasoning and /parse_function_call, which parse a text that was generated
// elsewhere: {"text", "reasoning_parser"} → {"reasoning_text", "text"} and {"text", "tools",
// "tool_call_parser"} → {"normal_text", "calls": [{"tool_index", "name", "parameters"}]}. They run on I/O
// threads.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "server/http/http.h"
#include "server/router.h"
#include "server/server_context.h"

namespace hadal::server {

// Holds the parsers for requests that name none, and the ledger that counts a request's memory.
struct TextParsers {
  std::optional<ChatFormat> chat_format;  // for the parser "auto"; none: a request must name another one
  std::string reasoning = "auto";
  std::string tool_calls = "auto";
  std::shared_ptr<RequestMemory> memory;  // null: memory is not counted
};

// The answers are pure functions of the body and the parsers. Errors name the field, its value and what is
// allowed.
HttpResponse separate_reasoning_response(std::string_view body, const TextParsers& parsers);
HttpResponse parse_function_call_response(std::string_view body, const TextParsers& parsers);

void add_native_text_routes(Router& router, ServerContext& context);

}  // namespace hadal::server
