// HttpClient is a light HTTP/1.1 client for generating load, with or without TLS. One thread handles any
// number of requests at once, connections are kept alive and reused, and server-sent events are passed on as
// they arrive. All work, including calls of handlers, happens inside run() or fetch(); one thread uses an
// object.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "client/http_url.h"

namespace hadal::client {

struct HttpRequest {
  std::string method = "POST";
  std::string target;  // "/generate"
  std::string body;    // JSON, or empty
};

struct HttpReply {
  int status = 0;     // 0: no answer
  std::string body;   // unless the answer is a successful event stream
  std::string error;  // why there is no complete answer
  bool ok() const { return error.empty() && status >= 200 && status < 300; }
};

// Returns one line that says why `reply` failed: the error of the transport, or the status and the message of
// the body.
std::string describe_failure(const HttpReply& reply);

// Receives the answer to one request.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  virtual void on_event(std::string_view data) = 0;  // each event of a stream, in order
  virtual void on_done(HttpReply reply) = 0;  // exactly once, after all events, unless run() was stopped
};

struct HttpClientOptions {
  std::string bearer;               // Authorization: Bearer …; empty: none
  bool verify_certificate = true;   // with TLS
  double timeout_s = 6.0 * 3600.0;  // from the start of a request to its end
  int max_idle_connections = 4096;
};

class HttpClient {
 public:
  // Resolves the host. The errors are kNotFound (no such host) and kUnsupported (TLS cannot be set up).
  static Result<std::unique_ptr<HttpClient>> create(const HttpUrl& url, const HttpClientOptions& options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Starts a request, whose handler is called inside run(). Handlers may call this.
  void start(HttpRequest request, std::shared_ptr<HttpHandler> handler);

  // Calls `action` inside run(), `delay` from now.
  void call_after(std::chrono::nanoseconds delay, std::function<void()> action);

  // Runs until every request and every call_after has ended, and then returns true. `stop` is polled ten
  // times per second; when it returns true, all requests under way are dropped, and run() returns false.
  bool run(const std::function<bool()>& stop);

  // Sends one request and waits for the answer. The events of a stream are dropped. It must not be called
  // inside run().
  HttpReply fetch(HttpRequest request);

  int64_t num_connections_opened() const;

 private:
  struct Impl;
  explicit HttpClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hadal::client
