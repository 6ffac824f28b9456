// Serves every endpoint that generates for a client, whatever its dialect, in one way: it parses the body,
// answers with the error if there is one, and otherwise runs the request.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <variant>

#include "server/generation/parse_task.h"
#include "server/json/api_error.h"
#include "server/openai/openai_call.h"
#include "server/router.h"

namespace hadal::server {

// Adds POST `path`, whose errors have this style. `parse(body, limits)` returns a Request or a FieldError;
// `make_answer(request)` returns the JSON of the endpoint (a unique_ptr<OpenAiAnswer>).
template <typename Request, typename MakeAnswer>
void add_openai_route(Router& router, ServerContext& context, std::string_view path,
                      std::variant<Request, FieldError> (*parse)(std::string_view, const OpenAiLimits&),
                      MakeAnswer make_answer, ErrorStyle style = ErrorStyle::kOpenAi) {
  router.add({.method = "POST",
              .path = path,
              .style = style,
              .handler = [&context, parse, make_answer, style](std::shared_ptr<HttpExchange> exchange) {
                const OpenAiLimits limits = openai_limits(context, exchange->request());
                parse_body(
                    context, std::move(exchange), style,
                    [parse, limits](std::string_view body) { return parse(body, limits); },
                    [&context, make_answer, style](std::shared_ptr<HttpExchange> client,
                                                   std::variant<Request, FieldError> parsed) {
                      if (const FieldError* error = std::get_if<FieldError>(&parsed)) {
                        return client->respond(error_response(style, error->status, error->field));
                      }
                      auto& request = std::get<Request>(parsed);
                      auto answer = make_answer(request);
                      run_openai_call(context, std::move(client), std::move(request.common),
                                      std::move(answer));
                    });
              }});
}

}  // namespace hadal::server
