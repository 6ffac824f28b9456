#include "server/unsupported_routes.h"

#include <string_view>

namespace hadal::server {
namespace {

constexpr std::string_view kNoEmbeddings = "text generation only: this server makes no embeddings";
constexpr std::string_view kNoClasses = "text generation only: this server does not classify texts";
constexpr std::string_view kNoScores =
    "text generation only: this server does not score or rank texts; /generate has log-probabilities";
constexpr std::string_view kOneModel =
    "this server has the one model of --model-path, which no request fetches, changes or removes";

struct UnsupportedRoute {
  std::string_view method;
  std::string_view path;
  ErrorStyle style;
  std::string_view why;
};

constexpr UnsupportedRoute kRoutes[] = {
    {"POST", "/v1/embeddings", ErrorStyle::kOpenAi, kNoEmbeddings},
    {"POST", "/v1/classify", ErrorStyle::kOpenAi, kNoClasses},
    {"POST", "/v1/score", ErrorStyle::kOpenAi, kNoScores},
    {"POST", "/v1/rerank", ErrorStyle::kOpenAi, kNoScores},
    {"POST", "/encode", ErrorStyle::kSglang, kNoEmbeddings},
    {"POST", "/classify", ErrorStyle::kSglang, kNoClasses},
    {"POST", "/api/embed", ErrorStyle::kOllama, kNoEmbeddings},
    {"POST", "/api/embeddings", ErrorStyle::kOllama, kNoEmbeddings},
    {"POST", "/api/pull", ErrorStyle::kOllama, kOneModel},
    {"POST", "/api/push", ErrorStyle::kOllama, kOneModel},
    {"POST", "/api/create", ErrorStyle::kOllama, kOneModel},
    {"POST", "/api/copy", ErrorStyle::kOllama, kOneModel},
    {"DELETE", "/api/delete", ErrorStyle::kOllama, kOneModel},
    {"GET", "/api/blobs/{digest}", ErrorStyle::kOllama, kOneModel},
    {"POST", "/api/blobs/{digest}", ErrorStyle::kOllama, kOneModel},
};

}  // namespace

void add_unsupported_routes(Router& router) {
  for (const UnsupportedRoute& route : kRoutes) {
    router.add({.method = route.method,
                .path = route.path,
                .style = route.style,
                .max_body_bytes = 0,
                .handler = [&route](const std::shared_ptr<HttpExchange>& exchange) {
                  exchange->respond(error_response(route.style, 501, route.why));
                }});
  }
}

}  // namespace hadal::server
