// Limits how many requests and tokens a client may use (--rate-limit), by two token buckets for each client.
// The caller gives the time, so that nothing here waits. Any thread may call.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/result.h"
#include "server/http/http.h"

namespace hadal::server {

struct RateLimits {
  double requests_per_second = 0;  // 0: no limit
  double tokens_per_minute = 0;    // prompts and answers together; 0: no limit
  bool any() const { return requests_per_second > 0 || tokens_per_minute > 0; }
};

// Reads "requests/s,tokens/min", for example "5,60000"; 0 stands for no limit. Errors (kInvalidArgument)
// begin with `field`.
Result<RateLimits> parse_rate_limits(std::string_view text, std::string_view field);

// A client's first bucket holds the requests of one second (but at least one request), its second bucket the
// tokens of one minute. A request takes one from the first bucket when its headers are complete. Tokens are
// taken as they are used, because the length of an answer is not known in advance. So a request is admitted
// while its client has a token, and may leave a debt. The client's next request is admitted only when the
// bucket has made up the debt.
class RateLimiter {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMaxClients = 65'536;

  // Remembers at most `max_clients` clients and forgets clients whose buckets are full again. When it can
  // remember no more, further clients share one pair of buckets.
  explicit RateLimiter(const RateLimits& limits, size_t max_clients = kMaxClients);

  struct Decision {
    bool admitted = true;
    int64_t retry_after_s = 0;  // ≥ 1 when the request is not admitted
    std::string reason;         // one sentence for a client that is not admitted
    HeaderList headers;         // OpenAI's x-ratelimit-… of this client, after this request
  };
  Decision admit(const std::string& client, Clock::time_point now);
  // Takes the tokens that `client` has used.
  void take_tokens(const std::string& client, int64_t tokens, Clock::time_point now);

  size_t num_clients() const;  // the clients that are remembered

 private:
  struct Buckets {
    double requests = 0;
    double tokens = 0;
    Clock::time_point filled_at;
  };
  Buckets full(Clock::time_point now) const;
  void fill(Buckets& buckets, Clock::time_point now) const;
  bool is_full(const Buckets& buckets, Clock::time_point now) const;
  Buckets& find_or_add(const std::string& client, Clock::time_point now);

  const RateLimits limits_;
  const double request_capacity_;
  const double token_capacity_;
  const size_t max_clients_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, Buckets> clients_;  // guarded by mutex_, as everything below
  Buckets others_;                                    // shared by the clients for whom there was no room
  size_t sweep_at_;                                   // number of clients at which full buckets are forgotten
  Clock::time_point swept_at_{};
};

// Formats a duration as OpenAI does: "17ms", "8.64s", "6m0s", "1h0m0s".
std::string format_reset(double seconds);

}  // namespace hadal::server
