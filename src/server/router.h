// Maps paths to handlers: one table, filled at start, read by every I/O thread. It decides about a request
// when its headers are complete: path (404), method (405), key (401), page of another site (403). It catches
// exceptions of handlers (500).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/api_keys.h"
#include "server/http.h"

namespace hadal::server {

enum class Access { kOpen, kUser, kAdmin };  // no key, --api-key, --admin-api-key

struct Route {
  std::string_view method;
  std::string_view path;  // exact; a last part "{name}" matches one path segment, "{name...}" all that follow
  Access access = Access::kUser;
  ErrorStyle style = ErrorStyle::kSglang;
  size_t max_body_bytes = SIZE_MAX;  // 0, and always for GET: no body is needed, so none is kept
  std::function<void(std::shared_ptr<HttpExchange>)> handler;
};

class Router {
 public:
  // Admin routes change the server's state. They refuse (403) what a browser sends from a page of another
  // site. Without an admin key every key opens them too; the admin key opens everything. Without any key
  // everything is open. What browsers send must name an allowed host: a loopback name, an address, or one of
  // `allowed_hosts` ("*": any), because a site may let its own name point to this server's address.
  Router(std::shared_ptr<const KeyRing> keys, std::vector<std::string> allowed_hosts);
  void add(Route route);
  // Returns the decision about a request whose headers are complete: its route, or the answer that refuses
  // it.
  HttpAdmission check(const HttpRequest& request) const;
  // Returns the route of an admission.
  const Route& route(int index) const { return routes_.at(static_cast<size_t>(index)); }
  // Answers the exchange, now or later, exactly once. It checks the request unless the transport did (its
  // gate is check()).
  void handle(std::shared_ptr<HttpExchange> exchange) const;

 private:
  HttpAdmission decide(const HttpRequest& request, const KeyRing::Match& match) const;
  bool host_allowed(const HttpRequest& request) const;

  std::vector<Route> routes_;
  const std::shared_ptr<const KeyRing> keys_;
  const std::vector<std::string> allowed_hosts_;
};

}  // namespace hadal::server
