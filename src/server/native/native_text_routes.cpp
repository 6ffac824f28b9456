// The routes have a file of their own, because the functions in native_text.cpp need neither threads nor
// sockets.
#include <utility>

#include "server/generation/generation.h"
#include "server/generation/parse_task.h"
#include "server/native/native_text.h"

namespace hadal::server {

void add_native_text_routes(Router& router, ServerContext& context) {
  TextParsers parsers{.chat_format = context.chat_format};
  if (!context.options.reasoning_parser.empty()) parsers.reasoning = context.options.reasoning_parser;
  if (!context.options.tool_call_parser.empty()) parsers.tool_calls = context.options.tool_call_parser;
  const auto add = [&](std::string_view path, HttpResponse (*answer)(std::string_view, const TextParsers&)) {
    router.add({.method = "POST",
                .path = path,
                .handler = [&context, answer, parsers](std::shared_ptr<HttpExchange> exchange) {
                  TextParsers of_request = parsers;
                  of_request.memory = ledger_for(context, exchange->request());
                  parse_body(
                      context, std::move(exchange), ErrorStyle::kSglang,
                      [answer, of_request](std::string_view body) { return answer(body, of_request); },
                      [](const std::shared_ptr<HttpExchange>& client, HttpResponse response) {
                        client->respond(std::move(response));
                      });
                }});
  };
  add("/separate_reasoning", separate_reasoning_response);
  add("/parse_function_call", parse_function_call_response);
}

}  // namespace hadal::server
