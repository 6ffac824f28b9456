// Maps paths to handlers. There is one table, which is filled at start and read by every I/O thread. When the
// headers of a request are complete, the router checks the path (404), the method (405), the key (401) and
// whether a page of another site sent the request (403). It turns exceptions of handlers into a 500.
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

// Access says who may use a route: everybody (kOpen); every key (kUser); administrators, and named keys for
// their own requests (kOwn); or administrators alone (kAdmin).
enum class Access { kOpen, kUser, kOwn, kAdmin };

struct Route {
  std::string_view method;
  // The path of a request may end with one more slash. A last part "{name}" matches one segment, and
  // "{name...}" matches all that follow. Every other part must match exactly.
  std::string_view path;
  Access access = Access::kUser;
  ErrorStyle style = ErrorStyle::kSglang;
  size_t max_body_bytes = SIZE_MAX;  // 0, and always for GET: no body is needed, so none is read
  std::function<void(std::shared_ptr<HttpExchange>)> handler;
};

class Router {
 public:
  // Routes of kOwn and kAdmin change the server's state. They refuse (403) requests that a browser sends from
  // a page of another site. The admin key opens everything. Without an admin key a nameless key (--api-key)
  // administers as well, but a named key (--api-key-file) never does, because it is one of several. Without
  // any key everything is open. Requests from browsers must name an allowed host: a loopback name, an
  // address, or one of `allowed_hosts` ("*": any), because a site may let its own name point to this server's
  // address.
  Router(std::shared_ptr<const KeyRing> keys, std::vector<std::string> allowed_hosts);
  void add(Route route);
  // Returns the decision about a request whose headers are complete: its route, or the answer that refuses
  // it.
  HttpAdmission check(const HttpRequest& request) const;
  // Returns all routes as labels of /metrics, by index.
  std::vector<Endpoint> endpoints() const;
  // Returns the route of an admission.
  const Route& route(int index) const { return routes_.at(static_cast<size_t>(index)); }
  // Answers the exchange, now or later, exactly once. It checks the request first, unless the transport
  // already did so (with check() as its gate).
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
