// Counts what a request costs, from the end of its headers until no part of the server works on it any more.
// The limits of its client (--rate-limit) and the audit log (--audit-log) use the counts. The contents of a
// request are never kept.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "server/admission/audit_log.h"
#include "server/admission/rate_limit.h"

namespace hadal::server {

// AuditEntry is one line of the audit log.
struct AuditEntry {
  std::chrono::system_clock::time_point when;  // the headers were complete
  std::string key;                             // name of the key; empty: it has none, or none was sent
  std::string peer;                            // "127.0.0.1:54321"
  std::string method;
  std::string endpoint;       // the route, "/v1/models/{id}"; the beginning of a path that is no route
  std::string id;             // X-Request-Id
  int status = 499;           // as in the access log; 499: the client went away
  int64_t prompt_tokens = 0;  // counts each prompt once, however many answers it has
  int64_t cached_tokens = 0;  // tokens of the prompt, as told to the client
  int64_t completion_tokens = 0;
  std::array<int64_t, 5> num_finished{};  // generations by FinishReason
  double seconds = 0;                     // until the answer was complete
};

// Returns the entry as one line of JSON, without a line break.
std::string to_json(const AuditEntry& entry);

// The transport's exchange and each generation of the request hold the tally, which is complete when the last
// of them releases it. Only the request's I/O thread uses it.
class RequestTally {
 public:
  // `limiter` limits `client`. Both `limiter` and the audit log may be null.
  RequestTally(AuditEntry entry, std::string client, std::shared_ptr<RateLimiter> limiter,
               std::shared_ptr<AuditLog> audit);
  // Writes the line of the audit log.
  ~RequestTally();
  RequestTally(const RequestTally&) = delete;
  RequestTally& operator=(const RequestTally&) = delete;

  void add_prompt(int64_t tokens);
  void add_answer(int64_t tokens);
  void add_end(FinishReason reason, int64_t cached_tokens);
  // Says that the answer is complete, or that the client has gone.
  void set_answered(int status, double seconds, std::string_view id, std::string_view peer);

 private:
  void take(int64_t tokens);

  AuditEntry entry_;
  const std::string client_;
  const std::shared_ptr<RateLimiter> limiter_;
  const std::shared_ptr<AuditLog> audit_;
};

// Counts the tokens of one generation and tells its request's tally about them.
class GenerationTally {
 public:
  // `prompt_tokens` is 0 for further answers to the same prompt.
  void start(std::shared_ptr<RequestTally> tally, int64_t prompt_tokens);
  // Counts the chunk's tokens even if they are not delivered because the client has gone.
  void count(const TokenChunk& chunk);
  bool is_open() const { return tally_ != nullptr; }  // the last chunk has not been counted

 private:
  std::shared_ptr<RequestTally> tally_;  // null: nothing is counted
  int64_t completion_tokens_ = 0;
  bool has_prompt_ = false;
};

}  // namespace hadal::server
