#include "server/admission/rate_limit.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/seconds.h"

namespace hadal::server {
namespace {

constexpr double kMaxRate = 1e12;
constexpr size_t kFirstSweep = 1024;
// While the greatest number of clients is remembered, full buckets are forgotten at most this often.
constexpr std::chrono::seconds kSweepInterval{1};

// Reads a number in [0, kMaxRate]; returns -1 if `text` is not one.
double read_rate(std::string_view text) {
  double value = -1;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  return error == std::errc() && at == end && value >= 0 && value <= kMaxRate ? value : -1;
}

void add_headers(HeaderList& headers, std::string_view what, double capacity, double level,
                 double per_second) {
  const auto add = [&](std::string_view name, std::string value) {
    headers.emplace_back(fmt::format("x-ratelimit-{}-{}", name, what), std::move(value));
  };
  add("limit", fmt::format("{:.0f}", std::floor(capacity)));
  add("remaining", fmt::format("{:.0f}", std::floor(std::max(0.0, level))));
  add("reset", format_reset(std::max(0.0, capacity - level) / per_second));
}

}  // namespace

Result<RateLimits> parse_rate_limits(std::string_view text, std::string_view field) {
  const size_t comma = text.find(',');
  if (comma == text.npos || text.find(',', comma + 1) != text.npos) {
    return invalid_argument(
        "{} is '{}'; must be two numbers with a comma between them, requests a second and tokens a minute, "
        "as in 5,60000",
        field, text);
  }
  const std::string_view requests_text = text.substr(0, comma);
  const std::string_view tokens_text = text.substr(comma + 1);
  const double requests = read_rate(requests_text);
  const double tokens = read_rate(tokens_text);
  if (requests < 0) {
    return invalid_argument(
        "{} is '{}'; must begin with requests a second, a number in [0, {:g}] without an exponent, but there "
        "is '{}'",
        field, text, kMaxRate, requests_text);
  }
  if (tokens < 0 || (tokens > 0 && tokens < 1)) {
    return invalid_argument(
        "{} is '{}'; must end with tokens a minute, 0 (no limit) or a number in [1, {:g}] without an "
        "exponent, but there is '{}'",
        field, text, kMaxRate, tokens_text);
  }
  if (requests == 0 && tokens == 0) {
    return invalid_argument(
        "{} is '{}'; must have a number above 0, because 0 stands for no limit; leave the flag out for none",
        field, text);
  }
  return RateLimits{.requests_per_second = requests, .tokens_per_minute = tokens};
}

std::string format_reset(double seconds) {
  if (seconds < 1) return fmt::format("{:.0f}ms", std::ceil(seconds * 1000));
  if (seconds < 60) return fmt::format("{:.4g}s", seconds);
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  if (whole < 3600) return fmt::format("{}m{}s", whole / 60, whole % 60);
  return fmt::format("{}h{}m{}s", whole / 3600, whole / 60 % 60, whole % 60);
}

RateLimiter::RateLimiter(const RateLimits& limits, size_t max_clients)
    : limits_(limits),
      request_capacity_(std::max(1.0, limits.requests_per_second)),
      token_capacity_(limits.tokens_per_minute),
      max_clients_(max_clients),
      others_(full({})),
      sweep_at_(std::min(kFirstSweep, max_clients)) {}

RateLimiter::Buckets RateLimiter::full(Clock::time_point now) const {
  return {.requests = request_capacity_, .tokens = token_capacity_, .filled_at = now};
}

void RateLimiter::fill(Buckets& buckets, Clock::time_point now) const {
  const double seconds = std::max(0.0, seconds_between(buckets.filled_at, now));
  buckets.requests = std::min(request_capacity_, buckets.requests + seconds * limits_.requests_per_second);
  buckets.tokens = std::min(token_capacity_, buckets.tokens + seconds * limits_.tokens_per_minute / 60);
  buckets.filled_at = std::max(buckets.filled_at, now);
}

bool RateLimiter::is_full(const Buckets& buckets, Clock::time_point now) const {
  Buckets later = buckets;
  fill(later, now);
  return (limits_.requests_per_second == 0 || later.requests >= request_capacity_) &&
         (limits_.tokens_per_minute == 0 || later.tokens >= token_capacity_);
}

RateLimiter::Buckets& RateLimiter::find_or_add(const std::string& client, Clock::time_point now) {
  if (const auto known = clients_.find(client); known != clients_.end()) {
    fill(known->second, now);
    return known->second;
  }
  if (clients_.size() >= sweep_at_ && (sweep_at_ < max_clients_ || now - swept_at_ >= kSweepInterval)) {
    std::erase_if(clients_, [&](const auto& entry) { return is_full(entry.second, now); });
    swept_at_ = now;
    sweep_at_ = std::clamp(2 * clients_.size(), std::min(kFirstSweep, max_clients_), max_clients_);
  }
  if (clients_.size() >= max_clients_) {
    fill(others_, now);
    return others_;
  }
  return clients_.emplace(client, full(now)).first->second;
}

RateLimiter::Decision RateLimiter::admit(const std::string& client, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  Buckets& buckets = find_or_add(client, now);
  Decision out;
  double wait_s = 0;
  const double tokens_per_second = limits_.tokens_per_minute / 60;
  if (limits_.requests_per_second > 0 && buckets.requests < 1) {
    wait_s = (1 - buckets.requests) / limits_.requests_per_second;
    out.reason = fmt::format("{:g} requests a second are allowed", limits_.requests_per_second);
  }
  if (limits_.tokens_per_minute > 0 && buckets.tokens < 1) {
    wait_s = std::max(wait_s, (1 - buckets.tokens) / tokens_per_second);
    out.reason = fmt::format("{:.0f} tokens a minute are allowed", limits_.tokens_per_minute);
  }
  if (!out.reason.empty()) {
    out.admitted = false;
    out.retry_after_s = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(wait_s)));
    out.reason =
        fmt::format("the rate limit is reached: {}; try again in {}", out.reason, format_reset(wait_s));
  } else if (limits_.requests_per_second > 0) {
    buckets.requests -= 1;
  }
  if (limits_.requests_per_second > 0) {
    add_headers(out.headers, "requests", request_capacity_, buckets.requests, limits_.requests_per_second);
  }
  if (limits_.tokens_per_minute > 0)
    add_headers(out.headers, "tokens", token_capacity_, buckets.tokens, tokens_per_second);
  return out;
}

void RateLimiter::take_tokens(const std::string& client, int64_t tokens, Clock::time_point now) {
  if (limits_.tokens_per_minute == 0 || tokens <= 0) return;
  const std::lock_guard lock(mutex_);
  find_or_add(client, now).tokens -= static_cast<double>(tokens);
}

size_t RateLimiter::num_clients() const {
  const std::lock_guard lock(mutex_);
  return clients_.size();
}

}  // namespace hadal::server
