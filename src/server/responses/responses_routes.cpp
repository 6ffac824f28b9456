#include "server/responses/responses_routes.h"

#include <fmt/format.h>

#include <utility>

#include "base/printable.h"
#include "server/generation/parse_task.h"
#include "server/json/json_writer.h"
#include "server/openai/openai_call.h"
#include "server/responses/response_store.h"
#include "server/responses/responses_answer.h"
#include "server/responses/responses_request.h"

namespace hadal::server {
namespace {

constexpr ErrorStyle kStyle = ErrorStyle::kOpenAi;
constexpr std::string_view kPrefix = "/v1/responses/";

using Store = std::shared_ptr<ResponseStore>;

HttpResponse json_response(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

// Returns the owner of the responses that a client may read: the name of its key. All clients without such a
// name share one owner.
std::string owner_of(const HttpRequest& request) {
  return std::string(key_name_of(request.client));
}

void create(ServerContext& context, const Store& store, std::shared_ptr<HttpExchange> exchange) {
  const OpenAiLimits limits = openai_limits(context, exchange->request());
  const std::string owner = owner_of(exchange->request());
  parse_body(
      context, std::move(exchange), kStyle,
      [limits, store, owner](std::string_view body) { return parse_responses(body, limits, *store, owner); },
      [&context, store, owner](std::shared_ptr<HttpExchange> client,
                               std::variant<ResponsesRequest, FieldError> parsed) {
        if (const FieldError* error = std::get_if<FieldError>(&parsed))
          return client->respond(error_response(kStyle, error->status, error->field));
        auto& request = std::get<ResponsesRequest>(parsed);
        auto answer = std::make_unique<ResponsesAnswer>(request, *context.tokenizer, store, owner);
        run_openai_call(context, std::move(client), std::move(request.common), std::move(answer));
      });
}

void count(ServerContext& context, const Store& store, std::shared_ptr<HttpExchange> exchange) {
  const OpenAiLimits limits = openai_limits(context, exchange->request());
  const std::string owner = owner_of(exchange->request());
  parse_body(
      context, std::move(exchange), kStyle,
      [limits, store, owner](std::string_view body) {
        return count_responses_tokens(body, limits, *store, owner);
      },
      [](const std::shared_ptr<HttpExchange>& client, std::variant<int64_t, FieldError> counted) {
        if (const FieldError* error = std::get_if<FieldError>(&counted))
          return client->respond(error_response(kStyle, error->status, error->field));
        client->respond(json_response(fmt::format(R"({{"object":"response.input_tokens","input_tokens":{}}})",
                                                  std::get<int64_t>(counted))));
      });
}

HttpResponse not_stored(std::string_view id) {
  return error_response(
      kStyle, 404,
      fmt::format(
          "there is no stored response {} of this key; it may have been displaced (--max-response-store)",
          shown_text(id)),
      "response_id");
}

std::string id_of(const HttpRequest& request) {
  return request.path.substr(kPrefix.size(), request.path.find('/', kPrefix.size()) - kPrefix.size());
}

HttpResponse read(const ResponseStore& store, const HttpRequest& request) {
  const std::string id = id_of(request);
  if (request.query.find("stream=true") != std::string::npos)
    return error_response(kStyle, 400, "stream is true; must be false: a stored response is complete",
                          "stream");
  const auto found = store.find(id, owner_of(request));
  return found == nullptr ? not_stored(id) : json_response(found->json);
}

HttpResponse remove(ResponseStore& store, const HttpRequest& request) {
  const std::string id = id_of(request);
  if (!store.erase(id, owner_of(request))) return not_stored(id);
  std::string body = "{\"id\":";
  append_json_string(body, id);
  return json_response(body + ",\"object\":\"response\",\"deleted\":true}");
}

// When the store knows an id, its response has already ended.
HttpResponse cancel(const ResponseStore& store, const HttpRequest& request) {
  const std::string id = id_of(request);
  if (store.find(id, owner_of(request)) == nullptr) return not_stored(id);
  return error_response(kStyle, 400,
                        "only a response in the background can be cancelled, and there are none; close the "
                        "connection of a request, or use /abort_request");
}

}  // namespace

void add_responses_routes(Router& router, ServerContext& context) {
  const Store store = std::make_shared<ResponseStore>(context.options.response_store_bytes);
  router.add({.method = "POST",
              .path = "/v1/responses",
              .style = kStyle,
              .handler = [&context, store](std::shared_ptr<HttpExchange> exchange) {
                create(context, store, std::move(exchange));
              }});
  router.add({.method = "POST",
              .path = "/v1/responses/input_tokens",
              .style = kStyle,
              .handler = [&context, store](std::shared_ptr<HttpExchange> exchange) {
                count(context, store, std::move(exchange));
              }});
  const auto add = [&](std::string_view method, std::string_view path, auto answer) {
    router.add({.method = method,
                .path = path,
                .style = kStyle,
                .max_body_bytes = 0,
                .handler = [store, answer](const std::shared_ptr<HttpExchange>& exchange) {
                  exchange->respond(answer(*store, exchange->request()));
                }});
  };
  add("GET", "/v1/responses/{id}", read);
  add("DELETE", "/v1/responses/{id}", remove);
  add("POST", "/v1/responses/{id}/cancel", cancel);
}

}  // namespace hadal::server
