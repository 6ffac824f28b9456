// Maps paths to handlers: there is one table, which is filled at start and read by every I/O thread. It
// decides about a request when its headers are complete: path (404), method (405), key (401) and page of
// another site (403). It catches exceptions of handlers (500).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/admission/api_keys.h"
#include "server/http/http.h"
#include "server/json/api_error.h"
#include "server/metrics.h"

namespace hadal::server {

// Access says who may use a route: everybody, every key, a named key for what is its own and otherwise an
// administrator, or an administrator alone.
enum class Access { kOpen, kUser, kOwn, kAdmin };

struct Route {
  std::string_view method;
  // Requests may have one slash more at the end of their path. A last part "{name}" matches one segment, and
  // "{name...}" all that follow; everything else is exact.
  std::string_view path;
  Access access = Access::kUser;
  ErrorStyle style = ErrorStyle::kSglang;
  size_t max_body_bytes = SIZE_MAX;  // 0, and always for GET: no body is needed, so none is read
  std::function<void(std::shared_ptr<HttpExchange>)> handler;
};

class Router {
 public:
  // Routes of kOwn and kAdmin change the server's state. They refuse (403) what a browser sends from a page
  // of another site. The admin key opens everything. Without an admin key a nameless key (--api-key)
  // administers as well, but a named one (--api-key-file) never does, because others have keys too. Without
  // any key everything is open. What browsers send must name an allowed host: a loopback name, an address, or
  // one of `allowed_hosts` ("*": any), because a site may let its own name point to this server's address.
  Router(std::shared_ptr<const KeyRing> keys, std::vector<std::string> allowed_hosts);
  void add(Route route);
  // Returns the decision about a request whose headers are complete: its route, or the answer that refuses
  // it.
  HttpAdmission check(const HttpRequest& request) const;
  // Returns all routes as labels of /metrics, by index.
  std::vector<Endpoint> endpoints() const;
  // Returns the route of an admission.
  const Route& route(int index) const { return routes_.at(static_cast<size_t>(index)); }
  // Answers the exchange, now or later, exactly once. It checks the request unless the transport did (its
  // gate is check()).
  void handle(std::shared_ptr<HttpExchange> exchange) const;

 private:
  HttpAdmission decide(const HttpRequest& request, const KeyRing::Match& match) const;
  bool may_use(Access access, const KeyRing::Match& match) const;
  // Returns the answer to a request that may not use `route`.
  HttpResponse no_access(const Route& route, const HttpRequest& request, const KeyRing::Match& match) const;
  bool host_allowed(const HttpRequest& request) const;

  std::vector<Route> routes_;
  const std::shared_ptr<const KeyRing> keys_;
  const std::vector<std::string> allowed_hosts_;
};

}  // namespace hadal::server
