// The HTTP/1.1 transport: listening socket, I/O threads, TLS, time-outs, limits, access log.
//
// Threads: start, stop_accepting and stop are called by the owner (main). Each connection belongs to one of
// `num_threads` I/O threads from accept to close.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "server/http.h"

namespace hadal::server {

struct HttpLimits {
  size_t header_bytes = 64 << 10;        // request line and headers; more: 431
  size_t body_bytes = size_t{64} << 20;  // more: 413
  // Limit for all bodies together that are arriving or being read by their handlers; more: 503.
  size_t total_body_bytes = size_t{1} << 30;
  size_t stream_high_water = 256 << 10;    // bytes buffered for a slow reader before writers must pause
  std::chrono::seconds read_timeout{30};   // from the first byte of a request to its last (slow loris)
  std::chrono::seconds idle_timeout{75};   // keep-alive without a request
  std::chrono::seconds write_timeout{60};  // a client that reads nothing for so long is cut off
  int max_connections = 16384;             // more: accepted, answered 503 with Retry-After and closed
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
  bool access_log = true;  // one line per request: method, path, status, bytes, seconds, peer, id
};

class HttpServer {
 public:
  // The server is listening when this returns. `handler` may be called before start returns. Errors:
  // kInvalidArgument (bad TLS files, unknown host), kResourceExhausted (port in use, named in the message).
  static Result<std::unique_ptr<HttpServer>> start(HttpServerOptions options, HttpHandler handler);
  virtual ~HttpServer() = default;

  virtual uint16_t port() const = 0;
  virtual int num_threads() const = 0;
  virtual IoThread& io_thread(int index) = 0;
  virtual int64_t num_connections() const = 0;

  // Closes the listening socket and idle connections; running requests continue, and their connections close
  // after the answers.
  virtual void stop_accepting() = 0;
  // Cuts every connection and joins the threads. Idempotent; called by the destructor.
  virtual void stop() = 0;
};

}  // namespace hadal::server
