#include "server/ollama/ollama_routes.h"

#include <utility>

#include "server/generation/parse_task.h"
#include "server/metrics.h"
#include "server/ollama/ollama_answer.h"
#include "server/openai/openai_call.h"

namespace hadal::server {
namespace {

using Parsed = std::variant<OllamaRequest, FieldError>;

void run_ollama_call(ServerContext& context, std::shared_ptr<HttpExchange> exchange, Parsed parsed) {
  if (const FieldError* error = std::get_if<FieldError>(&parsed)) {
    return exchange->respond(error_response(ErrorStyle::kOllama, error->status, error->field));
  }
  auto& request = std::get<OllamaRequest>(parsed);
  if (request.loads_only) {
    context.metrics.count_unknown_fields(request.common.unknown_fields);
    HttpResponse response;
    response.body = ollama_loaded(request);
    return exchange->respond(std::move(response));
  }
  auto answer = std::make_unique<OllamaAnswer>(request, context.tokenizer);
  run_openai_call(context, std::move(exchange), std::move(request.common), std::move(answer));
}

}  // namespace

void add_ollama_routes(Router& router, ServerContext& context) {
  const auto add = [&](std::string_view path, Parsed (*parse)(std::string_view, const OpenAiLimits&)) {
    router.add({.method = "POST",
                .path = path,
                .style = ErrorStyle::kOllama,
                .handler = [&context, parse](std::shared_ptr<HttpExchange> exchange) {
                  const OpenAiLimits limits = openai_limits(context, exchange->request());
                  parse_body(
                      context, std::move(exchange), ErrorStyle::kOllama,
                      [parse, limits](std::string_view body) { return parse(body, limits); },
                      [&context](std::shared_ptr<HttpExchange> client, Parsed parsed) {
                        run_ollama_call(context, std::move(client), std::move(parsed));
                      });
                }});
  };
  add("/api/chat", parse_ollama_chat);
  add("/api/generate", parse_ollama_generate);
  add_ollama_info_routes(router, context);
}

}  // namespace hadal::server
