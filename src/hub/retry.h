// Decides which failed requests are tried again, and when. The functions are pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "base/result.h"

namespace hadal::hub {

// A Failure says why a request returned nothing or only a part, and whether it may be tried again.
struct Failure {
  Status status;
  bool is_transient = false;   // the same request may succeed later
  int http_status = 0;         // of the answer; 0: there was none
  int64_t retry_after_s = -1;  // the answer's Retry-After; -1: none
};

inline constexpr int kMaxFailures = 5;           // this many in succession end a transfer
inline constexpr int64_t kMaxRetryAfterS = 600;  // a longer Retry-After ends the transfer

// Tells whether an HTTP status stands for a passing state of the server: 408, 429, and 5xx except 501.
bool is_transient_status(int http_status);

// Returns how long to wait after this failure, which is the `num_failures`-th in succession: the time of
// Retry-After, else 0.5 s, 1 s, 2 s and 4 s. Returns nullopt when the request should not be tried again.
std::optional<std::chrono::milliseconds> retry_delay(const Failure& failure, int num_failures);

}  // namespace hadal::hub
