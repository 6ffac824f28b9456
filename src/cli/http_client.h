// A light HTTP/1.1 client for load: any number of requests at once on one thread, connections kept alive and
// used again, server-sent events handed on as they arrive, plain or TLS. Everything happens on the thread
// inside run() or fetch(), handlers included; one thread an object.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace hadal::cli {

struct HttpUrl {
  bool tls = false;
  std::string host;
  uint16_t port = 0;
  std::string prefix;  // path in front of every target, without a slash at its end
};

// "http://host:port/prefix", "https://…", or "host:port". A prefix that ends in "/v1" loses that: targets
// bring it. IPv6 addresses stand in brackets. Error: kInvalidArgument, `source` names the text in it.
Result<HttpUrl> parse_url(std::string_view text, std::string_view source);

struct HttpRequest {
  std::string method = "POST";
  std::string target;  // "/generate"
  std::string body;    // JSON, or empty
};

struct HttpReply {
  int status = 0;     // 0: no answer
  std::string body;   // of an answer that is not a successful event stream
  std::string error;  // why there is no complete answer
  bool ok() const { return error.empty() && status >= 200 && status < 300; }
};

// One line that says what went wrong with `reply`: the transport's error, or status and the body's message.
std::string describe_failure(const HttpReply& reply);

// Receives the answer to one request.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  virtual void on_event(std::string_view data) = 0;  // of an event stream, in order
  virtual void on_done(HttpReply reply) = 0;         // last, exactly once; not called after HttpClient's end
};

struct HttpClientOptions {
  std::string bearer;               // Authorization: Bearer …; empty: none
  bool verify_certificate = true;   // of a TLS server
  double timeout_s = 6.0 * 3600.0;  // a request, from its start to its end
  int max_idle_connections = 4096;
};

class HttpClient {
 public:
  // Resolves the host. Errors: kNotFound (no such host), kUnsupported (TLS cannot be set up).
  static Result<std::unique_ptr<HttpClient>> create(const HttpUrl& url, const HttpClientOptions& options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Starts a request; the handler hears of it inside run(). May be called by handlers.
  void start(HttpRequest request, std::shared_ptr<HttpHandler> handler);

  // Calls `action` inside run(), `delay` from now.
  void call_after(std::chrono::nanoseconds delay, std::function<void()> action);

  // Works until every request and call_after is over: true; or until `stop` (asked ten times a second)
  // returns true: then everything under way is dropped, and false.
  bool run(const std::function<bool()>& stop);

  // One request, and waits for the answer. Not while run() is on. An event stream's data is dropped.
  HttpReply fetch(HttpRequest request);

  int64_t num_connections_opened() const;

 private:
  struct Impl;
  explicit HttpClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hadal::cli
