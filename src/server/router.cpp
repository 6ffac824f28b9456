#include "server/router.h"

#include <arpa/inet.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/printable.h"
#include "server/http/http_message.h"

namespace hadal::server {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

// Returns the key of "Authorization: Bearer KEY", whose scheme may have any case, or else that of "x-api-key:
// KEY", which Anthropic's clients send.
std::string_view given_key(const HttpRequest& request) {
  const std::string_view header = request.header("authorization").value_or("");
  constexpr std::string_view kScheme = "bearer ";
  if (equal_ignoring_case(header.substr(0, kScheme.size()), kScheme)) return header.substr(kScheme.size());
  return request.header("x-api-key").value_or("");
}

// Returns the style of errors about a path that has no route.
ErrorStyle style_of(std::string_view path) {
  if (path == "/v1/messages" || path.starts_with("/v1/messages/")) return ErrorStyle::kAnthropic;
  if (path.starts_with("/api/")) return ErrorStyle::kOllama;
  return path.starts_with("/v1/") ? ErrorStyle::kOpenAi : ErrorStyle::kSglang;
}

bool matches(std::string_view pattern, std::string_view path) {
  const size_t brace = pattern.find('{');
  if (brace == std::string_view::npos) return pattern == path;
  const std::string_view tail = pattern.substr(pattern.find('}') + 1);
  if (!path.starts_with(pattern.substr(0, brace)) || !path.ends_with(tail)) return false;
  if (path.size() <= brace + tail.size()) return false;
  const bool takes_rest = pattern.ends_with("...}");
  return takes_rest || path.substr(0, path.size() - tail.size()).find('/', brace) == std::string_view::npos;
}

// Tells whether a browser sent the request for a page of another site, or may have done so. A page of this
// server has the origin "scheme://<Host>". Only browsers send these headers. For an image or a link that
// leads to another machine by plain HTTP, they send neither of the two.
bool from_another_site(const HttpRequest& request) {
  const std::string_view site = request.header("sec-fetch-site").value_or("");
  if (!site.empty() && site != "same-origin" && site != "none") return true;
  const auto origin = request.header("origin");
  if (!origin) return site.empty() && request.header("user-agent").value_or("").starts_with("Mozilla/");
  const size_t scheme = origin->find("://");
  if (scheme == std::string_view::npos) return true;  // "null"
  return !equal_ignoring_case(origin->substr(scheme + 3), request.header("host").value_or(""));
}

// Returns the name in a Host header without the port: "[::1]" for "[::1]:80".
std::string_view host_name(std::string_view host) {
  const size_t bracket = host.find(']');
  return host.substr(0, host.find(':', bracket == host.npos ? 0 : bracket));
}

// Neither an address nor a name below localhost can be made to point to another machine.
bool is_address_or_loopback(std::string_view name) {
  if (name.starts_with('[') && name.ends_with(']')) {
    in6_addr address;
    return ::inet_pton(AF_INET6, std::string(name.substr(1, name.size() - 2)).c_str(), &address) == 1;
  }
  constexpr std::string_view kLocal = "localhost";
  if (name.size() >= kLocal.size() && equal_ignoring_case(name.substr(name.size() - kLocal.size()), kLocal))
    return name.size() == kLocal.size() || name[name.size() - kLocal.size() - 1] == '.';
  in_addr address;
  return ::inet_pton(AF_INET, std::string(name).c_str(), &address) == 1;
}

bool changes_state(Access access) {
  return access == Access::kOwn || access == Access::kAdmin;
}

// Returns true for a named key, because a key file may hold several.
bool is_one_of_many(const KeyRing::Match& match) {
  return match.rights == KeyRing::Rights::kUser && !match.name.empty();
}

HttpAdmission refused(Refusal reason, HttpResponse response) {
  HttpAdmission out;
  out.reason = reason;
  out.refusal = std::move(response);
  return out;
}

}  // namespace

Router::Router(std::shared_ptr<const KeyRing> keys, std::vector<std::string> allowed_hosts)
    : keys_(std::move(keys)), allowed_hosts_(std::move(allowed_hosts)) {}

void Router::add(Route route) {
  if (route.method == "GET") route.max_body_bytes = 0;
  routes_.push_back(std::move(route));
}

std::vector<Endpoint> Router::endpoints() const {
  std::vector<Endpoint> out;
  out.reserve(routes_.size());
  for (const Route& route : routes_) out.push_back({.method = route.method, .path = route.path});
  return out;
}

bool Router::host_allowed(const HttpRequest& request) const {
  // Over plain HTTP, a browser adds neither of the first two to a GET of a page's own origin.
  if (!request.header("origin") && !request.header("sec-fetch-site") &&
      !request.header("user-agent").value_or("").starts_with("Mozilla/")) {
    return true;
  }
  const std::string_view name = host_name(request.header("host").value_or(""));
  return is_address_or_loopback(name) ||
         std::any_of(allowed_hosts_.begin(), allowed_hosts_.end(), [&](const std::string& allowed) {
           return allowed == "*" || equal_ignoring_case(allowed, name);
         });
}

bool Router::may_use(Access access, const KeyRing::Match& match) const {
  if (access == Access::kOpen || match.rights == KeyRing::Rights::kAdmin) return true;
  if (is_one_of_many(match)) return access != Access::kAdmin;
  if (changes_state(access) && keys_->has_admin_key()) return false;
  return match.rights == KeyRing::Rights::kUser || !keys_->needs_key();
}

HttpResponse Router::no_access(const Route& route, const HttpRequest& request,
                               const KeyRing::Match& match) const {
  if (is_one_of_many(match) && !keys_->has_admin_key()) {
    return error_response(route.style, 403,
                          fmt::format("{} needs the admin key, and this server has none: a key of "
                                      "--api-key-file does not administer; start it with --admin-api-key",
                                      route.path));
  }
  const bool needs_admin = changes_state(route.access) && keys_->has_admin_key();
  return error_response(
      route.style, 401,
      fmt::format("{0}: send the header Authorization: Bearer <{1} key>, or x-api-key: <{1} key>",
                  needs_admin                  ? "this path needs the admin key"
                  : given_key(request).empty() ? "a key is needed"
                                               : "the key is wrong",
                  needs_admin ? "admin" : "api"));
}

HttpAdmission Router::check(const HttpRequest& request) const {
  const KeyRing::Match match = keys_->find(given_key(request));
  HttpAdmission out = decide(request, match);
  out.has_key = match.rights != KeyRing::Rights::kNone;
  out.is_admin = match.rights == KeyRing::Rights::kAdmin;
  out.always_logged = out.has_key || out.route < 0 || route(out.route).access != Access::kOpen;
  if (!match.name.empty()) out.client = std::string(kKeyPrefix) + match.name;
  return out;
}

HttpAdmission Router::decide(const HttpRequest& request, const KeyRing::Match& match) const {
  std::string_view path = request.path;
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
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
  const ErrorStyle style = found != nullptr ? found->style : style_of(path);
  if (!host_allowed(request)) {
    return refused(
        Refusal::kOrigin,
        error_response(style, 403,
                       fmt::format("the host '{}' is not allowed for browsers; --allowed-hosts adds it",
                                   for_log(request.header("host").value_or(""), kShownChars))));
  }
  if (found == nullptr && methods.empty()) {
    return refused(Refusal::kPath,
                   error_response(style, 404, fmt::format("no such path: {}", cut_text(path))));
  }
  if (found == nullptr) {
    HttpResponse response =
        error_response(style, 405,
                       fmt::format("method {} is not allowed for {}; use {}",
                                   for_log(request.method, kShownChars), cut_text(path), methods));
    response.headers.emplace_back("Allow", methods);
    return refused(Refusal::kMethod, std::move(response));
  }
  if (!may_use(found->access, match)) return refused(Refusal::kKey, no_access(*found, request, match));
  if (changes_state(found->access) && from_another_site(request)) {
    return refused(Refusal::kOrigin,
                   error_response(style, 403,
                                  "pages of another origin may not do this; call it without a "
                                  "browser"));
  }
  HttpAdmission out;
  out.style = style;
  out.max_body_bytes = found->max_body_bytes;
  out.route = static_cast<int>(found - routes_.data());
  return out;
}

void Router::handle(std::shared_ptr<HttpExchange> exchange) const {
  int index = exchange->request().route;
  if (index < 0) {
    HttpAdmission admission = check(exchange->request());
    if (admission.refusal) return exchange->respond(std::move(*admission.refusal));
    index = admission.route;
  }
  const Route& route = routes_[static_cast<size_t>(index)];
  try {
    route.handler(exchange);
  } catch (const std::exception& error) {
    const MemoryReserve::Scope reserve;
    log_error("handler failed path={} error=\"{}\"", route.path, error.what());
    exchange->respond(exception_response(route.style, error));
  }
}

}  // namespace hadal::server
