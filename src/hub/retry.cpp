#include "hub/retry.h"

namespace hadal::hub {

bool is_transient_status(int http_status) {
  return http_status == 408 || http_status == 429 || (http_status >= 500 && http_status != 501);
}

std::optional<std::chrono::milliseconds> retry_delay(const Failure& failure, int num_failures) {
  if (!failure.is_transient || num_failures >= kMaxFailures) return std::nullopt;
  if (failure.retry_after_s > kMaxRetryAfterS) return std::nullopt;
  if (failure.retry_after_s >= 0) return std::chrono::seconds(failure.retry_after_s);
  return std::chrono::milliseconds(250LL << num_failures);
}

}  // namespace hadal::hub
