// Turns bytes into an HttpRequest without sockets, so that connections, tests (which cut at every byte) and
// fuzzers can use it. HTTP/1.0 and HTTP/1.1; bodies by Content-Length or chunked. Not thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "server/http.h"

namespace hadal::server {

class HttpRequestParser {
 public:
  enum class State { kNeedMore, kComplete, kFailed };

  // `header_limit` is the limit in bytes of request line and headers (more: 431), `body_limit` that of the
  // decoded body (more: 413).
  HttpRequestParser(size_t header_limit, size_t body_limit);
  ~HttpRequestParser();

  // Reads as much of `data` as it can and returns the count. While the state is kNeedMore the rest must be
  // given again with more data after it; after kComplete it belongs to the next request.
  size_t feed(std::string_view data);
  State state() const;
  // True once a byte of the request has been read.
  bool started() const;
  // True if the headers are complete, the client waits for "100 Continue" and none of the body has arrived.
  // Returns true once per request.
  bool take_expect_continue();

  // Complete except for `id` and `peer` when the state is kComplete; before that, as far as it has arrived.
  HttpRequest& request();
  bool http11() const;
  bool keep_alive() const;  // as the client requested

  // After kFailed: the HTTP status, and one line for the client.
  int error_status() const;
  const std::string& error_message() const;

  // Prepares for the next request.
  void reset();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hadal::server
