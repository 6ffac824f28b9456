// Maps paths to handlers: one table, filled at start, read by every I/O thread. Checks the API key, answers
// unknown paths (404) and methods (405), catches exceptions of handlers (500).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/http.h"

namespace hadal::server {

enum class Access { kOpen, kUser, kAdmin };  // no key, --api-key, --admin-api-key

struct Route {
  std::string_view method;
  std::string_view path;  // exact; a last part "{name}" matches one path segment, "{name...}" all that follow
  Access access = Access::kUser;
  ErrorStyle style = ErrorStyle::kSglang;
  std::function<void(std::shared_ptr<HttpExchange>)> handler;
};

class Router {
 public:
  // Admin routes refuse (403) what a browser sends from a page of another site, whose Origin is not this
  // host. Without an admin key the API key opens admin routes too; the admin key opens everything. Without
  // any key everything is open.
  Router(std::string api_key, std::string admin_api_key);
  void add(Route route);
  // Answers the exchange, now or later, exactly once.
  void handle(std::shared_ptr<HttpExchange> exchange) const;

 private:
  bool allowed(const Route& route, const HttpRequest& request) const;

  std::vector<Route> routes_;
  std::string api_key_;
  std::string admin_api_key_;
};

}  // namespace hadal::server
