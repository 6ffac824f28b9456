#include "server/router.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/log.h"

namespace hadal::server {
namespace {

// Takes equally long for a wrong key and for the right one, if their lengths are equal.
bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned>(static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]));
  }
  return difference == 0;
}

// Returns the key of "Authorization: Bearer KEY"; the scheme may have any case.
std::string_view bearer_key(const HttpRequest& request) {
  const std::string_view header = request.header("authorization").value_or("");
  constexpr std::string_view kScheme = "bearer ";
  if (header.size() < kScheme.size()) return {};
  for (size_t i = 0; i < kScheme.size(); ++i) {
    const char c = header[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c) != kScheme[i]) return {};
  }
  return header.substr(kScheme.size());
}

bool matches(std::string_view pattern, std::string_view path) {
  const size_t brace = pattern.find('{');
  if (brace == std::string_view::npos) return pattern == path;
  if (!path.starts_with(pattern.substr(0, brace)) || path.size() == brace) return false;
  const bool takes_rest = pattern.ends_with("...}");
  return takes_rest || path.find('/', brace) == std::string_view::npos;
}

// A page of this server has the origin "scheme://<Host>". Only browsers send the header.
bool foreign_origin(const HttpRequest& request) {
  const auto origin = request.header("origin");
  if (!origin) return false;
  const size_t scheme = origin->find("://");
  if (scheme == std::string_view::npos) return true;  // "null"
  const std::string_view from = origin->substr(scheme + 3);
  const std::string_view host = request.header("host").value_or("");
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return !std::equal(from.begin(), from.end(), host.begin(), host.end(),
                     [&](char a, char b) { return lower(a) == lower(b); });
}

}  // namespace

Router::Router(std::string api_key, std::string admin_api_key)
    : api_key_(std::move(api_key)), admin_api_key_(std::move(admin_api_key)) {}

void Router::add(Route route) {
  routes_.push_back(std::move(route));
}

bool Router::allowed(const Route& route, const HttpRequest& request) const {
  if (route.access == Access::kOpen) return true;
  const std::string_view given = bearer_key(request);
  if (!admin_api_key_.empty() && equal_in_constant_time(given, admin_api_key_)) return true;
  const bool needs_admin = route.access == Access::kAdmin && !admin_api_key_.empty();
  if (needs_admin) return false;
  return api_key_.empty() || equal_in_constant_time(given, api_key_);
}

void Router::handle(std::shared_ptr<HttpExchange> exchange) const {
  const HttpRequest& request = exchange->request();
  const std::string_view path = request.path;
  const Route* found = nullptr;
  std::string methods;  // methods of this path
  for (const Route& route : routes_) {
    if (!matches(route.path, path)) continue;
    // HEAD is a GET whose body the transport leaves out.
    if (route.method == request.method || (route.method == "GET" && request.method == "HEAD")) {
      found = &route;
      break;
    }
    if (!methods.empty()) methods += ", ";
    methods += route.method;
  }
  const ErrorStyle style = found != nullptr           ? found->style
                           : path.starts_with("/v1/") ? ErrorStyle::kOpenAi
                                                      : ErrorStyle::kSglang;
  if (found == nullptr && methods.empty()) {
    return exchange->respond(error_response(style, 404, fmt::format("no such path: {}", request.path)));
  }
  if (found == nullptr) {
    HttpResponse response = error_response(
        style, 405, fmt::format("method {} is not allowed for {}; use {}", request.method, path, methods));
    response.headers.emplace_back("Allow", methods);
    return exchange->respond(std::move(response));
  }
  if (!allowed(*found, request)) {
    const bool needs_admin = found->access == Access::kAdmin && !admin_api_key_.empty();
    return exchange->respond(error_response(style, 401,
                                            fmt::format("{}: send the header Authorization: Bearer <{} key>",
                                                        needs_admin ? "this path needs the admin key"
                                                        : bearer_key(request).empty() ? "a key is needed"
                                                                                      : "the key is wrong",
                                                        needs_admin ? "admin" : "api")));
  }
  if (found->access == Access::kAdmin && foreign_origin(request)) {
    return exchange->respond(
        error_response(style, 403, "pages of another origin may not do this; call it without a browser"));
  }
  try {
    found->handler(exchange);
  } catch (const std::exception& error) {
    log_error("handler failed path={} error=\"{}\"", request.path, error.what());
    exchange->respond(error_response(style, 500, "internal error; the server's log has the details"));
  }
}

}  // namespace hadal::server
