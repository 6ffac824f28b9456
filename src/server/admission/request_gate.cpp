#include "server/admission/request_gate.h"

#include <utility>

#include "server/admission/request_tally.h"
#include "server/http/http_message.h"
#include "server/json/api_error.h"

namespace hadal::server {
namespace {

constexpr size_t kShownBytes = 100;  // bytes shown of a path that is no route

}  // namespace

HttpAdmission RequestGate::admit(const HttpRequest& request, RateLimiter::Clock::time_point now) const {
  HttpAdmission admission = router_.check(request);
  if (!limiter_ && !audit_) return admission;
  const Route* route = admission.route < 0 ? nullptr : &router_.route(admission.route);
  if (route != nullptr && route->access == Access::kOpen) return admission;
  const std::string& client = admission.client.empty() ? request.client : admission.client;
  const bool limited = limiter_ && route != nullptr && route->access == Access::kUser &&
                       route->max_body_bytes > 0 && !admission.is_admin;
  if (limited) limit(client, now, admission);
  // A client without a key can be refused any number of times. These refusals have no audit lines, which
  // would displace the lines of other clients. /metrics counts all refusals.
  if (admission.refusal && !admission.has_key) return admission;
  admission.tally = std::make_shared<RequestTally>(
      AuditEntry{.when = std::chrono::system_clock::now(),
                 .key = std::string(admission.is_admin ? kAdminKeyName : key_name_of(client)),
                 .peer = request.peer,
                 .method = for_log(request.method, kShownBytes),
                 .endpoint = route != nullptr ? std::string(route->path) : for_log(request.path, kShownBytes),
                 .id = {}},
      client, limited ? limiter_ : nullptr, audit_);
  return admission;
}

void RequestGate::limit(const std::string& client, RateLimiter::Clock::time_point now,
                        HttpAdmission& admission) const {
  RateLimiter::Decision decision = limiter_->admit(client, now);
  if (decision.admitted) {
    admission.answer_headers = std::move(decision.headers);
    return;
  }
  HttpResponse refusal = error_response(admission.style, 429, decision.reason);
  refusal.headers.emplace_back("Retry-After", std::to_string(decision.retry_after_s));
  refusal.headers.insert(refusal.headers.end(), decision.headers.begin(), decision.headers.end());
  admission.reason = Refusal::kRateLimit;
  admission.refusal = std::move(refusal);
}

}  // namespace hadal::server
