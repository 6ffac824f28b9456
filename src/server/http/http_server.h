// HttpServer is the HTTP/1.1 transport: listening socket, I/O threads, TLS, time-outs, limits and access log.
//
// The owner (main) calls start, stop_accepting and stop. Each connection belongs to one of `num_threads` I/O
// threads from accept to close.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "server/admission/request_memory.h"
#include "server/http/http.h"

namespace hadal::server {

class AnswerCounts;  // server/http/answer_counts.h

// This is the largest number of connections from one address, unless HttpLimits gives another.
inline constexpr int kMaxConnectionsPerPeer = 4096;

struct HttpLimits {
  size_t header_bytes = 64 << 10;        // request line and headers; more: 431
  size_t body_bytes = size_t{64} << 20;  // more: 413
  // The memory that all bodies together may have while they arrive or are read by their handlers; more: 503.
  size_t total_body_bytes = size_t{1} << 30;
  double client_body_share = 0.25;         // one client's share of total_body_bytes; more: 503
  size_t stream_high_water = 256 << 10;    // bytes buffered for a slow reader before writers must pause
  std::chrono::seconds read_timeout{30};   // from the first byte of a request to its last (slow loris)
  std::chrono::seconds idle_timeout{75};   // keep-alive without a request
  std::chrono::seconds write_timeout{60};  // a client that reads nothing for this long is cut off
  // When this many connections are open, or the process is about to run out of descriptors, the connection
  // that has been idle for longest is closed to make room for a new one. If none is idle, the new one gets
  // 503 with Retry-After.
  int max_connections = 16384;
  std::chrono::milliseconds min_idle{1000};  // connections idle for less are not closed for new ones
  // This is the limit for connections from one address (IPv6: one /64 network); more: 503. Without a value it
  // is kMaxConnectionsPerPeer, or less if the process may open few descriptors
  // (server/http/connection_limits.h).
  std::optional<int> max_connections_per_peer;

  size_t client_body_bytes() const {
    return static_cast<size_t>(client_body_share * static_cast<double>(total_body_bytes));
  }
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // an address or a name; "::" and "0.0.0.0" listen everywhere
  uint16_t port = 30000;           // 0: any free one, see port()
  int num_threads = 2;             // ≥ 1
  std::string tls_keyfile;         // PEM; both or neither
  std::string tls_certfile;        // PEM, chain allowed
  std::string tls_keyfile_password;
  HttpLimits limits;
  std::string cors_allow_origin = "*";  // empty: no CORS headers, OPTIONS is not answered
  // Writes one line per request, with method, path, status, bytes, seconds, peer and id. Lines of requests
  // that need no key are bounded (server/http/line_budget.h).
  bool access_log = true;
  std::shared_ptr<RequestMemory>
      memory;     // counts headers, bodies and unread answers; null: only HttpLimits bound them
  HttpGate gate;  // none: every request is admitted
};

class HttpServer {
 public:
  // Starts the server, which is listening when this returns. `handler` may be called before start returns.
  // The errors are kInvalidArgument (unknown host), kDataLoss (bad TLS files) and kResourceExhausted (port in
  // use, named in the message).
  static Result<std::unique_ptr<HttpServer>> start(HttpServerOptions options, HttpHandler handler);
  virtual ~HttpServer() = default;

  virtual uint16_t port() const = 0;
  virtual int num_threads() const = 0;
  virtual IoThread& io_thread(int index) = 0;
  virtual int64_t num_connections() const = 0;
  virtual HttpLedger& ledger() = 0;
  // Returns the counts of all answers, including those to clients that have left (499).
  virtual const AnswerCounts& answers() const = 0;
  // Returns the longest time for which the thread served one event or one batch of tasks in the last one to
  // two minutes.
  virtual double longest_task_seconds(int thread) const = 0;

  // Closes the listening socket and idle connections; running requests continue, and their connections close
  // after the answers.
  virtual void stop_accepting() = 0;
  // Cuts every connection and joins the threads. Repeated calls do nothing; the destructor calls it.
  virtual void stop() = 0;
};

}  // namespace hadal::server
