// Bytes to HttpRequest, without sockets: what a connection feeds, a test cuts at every byte and a fuzzer
// attacks. HTTP/1.0 and HTTP/1.1; bodies by Content-Length or chunked. Not thread-safe.
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

  // `header_limit`: bytes of request line and headers (more: 431); `body_limit`: bytes of the decoded body
  // (more: 413).
  HttpRequestParser(size_t header_limit, size_t body_limit);
  ~HttpRequestParser();

  // Takes as much of `data` as it can and returns the count. While the state is kNeedMore the rest must be
  // given again with more behind it; after kComplete it belongs to the next request.
  size_t feed(std::string_view data);
  State state() const;
  // True once a byte of the request has been taken.
  bool started() const;
  // The headers are complete, the client waits for "100 Continue" and none of the body has come. Once a
  // request.
  bool take_expect_continue();

  // Complete but for `id` and `peer` once the state is kComplete; as far as it has come before.
  HttpRequest& request();
  bool http11() const;
  bool keep_alive() const;  // what the client asked for

  // After kFailed: the HTTP status, and one line for the client.
  int error_status() const;
  const std::string& error_message() const;

  // Ready for the next request.
  void reset();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hadal::server
