// Decides about a request when its headers are complete: first by the router's checks, then by the client's
// limits. It begins the tally of every request, except health checks, /metrics, the page and requests that
// are refused without a known key.
#pragma once

#include <memory>

#include "server/admission/audit_log.h"
#include "server/admission/rate_limit.h"
#include "server/http/http.h"
#include "server/router.h"

namespace hadal::server {

class RequestGate {
 public:
  // Limits apply to requests with a body that need no admin key, because these generate or count tokens. The
  // admin key has no limits. If `limiter` is null there are no limits, and if the audit log is null it gets
  // no lines.
  RequestGate(const Router& router, std::shared_ptr<RateLimiter> limiter, std::shared_ptr<AuditLog> audit)
      : router_(router), limiter_(std::move(limiter)), audit_(std::move(audit)) {}

  // Any thread may call it. A refusal has status 429 and `Retry-After` where a limit is reached.
  HttpAdmission admit(const HttpRequest& request, RateLimiter::Clock::time_point now) const;

 private:
  void limit(const std::string& client, RateLimiter::Clock::time_point now, HttpAdmission& admission) const;

  const Router& router_;
  const std::shared_ptr<RateLimiter> limiter_;
  const std::shared_ptr<AuditLog> audit_;
};

}  // namespace hadal::server
