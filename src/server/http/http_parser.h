// Turns bytes into an HttpRequest without sockets, so that connections, tests (which cut at every byte) and
// fuzzers can use it. It supports HTTP/1.0 and HTTP/1.1, with bodies by Content-Length or chunked. It is not
// thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/http.h"

namespace hadal::server {

class HttpRequestParser {
 public:
  enum class State { kNeedMore, kComplete, kFailed, kRefused };

  struct BodyRule {
    size_t limit = 0;  // bytes of the decoded body (more: 413)
    bool read =
        true;  // false: the request is complete without its body, and keep_alive() is false if it has one
  };
  // Hooks decide about a request while it arrives; each may be absent. A refusal makes the state kRefused,
  // and no more of the request is read.
  struct Hooks {
    // This is called before the request line and before each header, with the memory that they need in all
    // (server/http/http_ledger.h). False means refused.
    std::function<bool(size_t bytes)> on_head;
    // This is called when the headers are complete, before any of the body is kept. An empty
    // result means refused.
    std::function<std::optional<BodyRule>(const HttpRequest&)> on_headers;
    // This is called before the body is given memory for `bytes` in all. False means refused.
    std::function<bool(size_t bytes)> on_growth;
  };

  // `header_limit` is the limit in bytes of request line and headers, with empty lines before them (more:
  // 431), `body_limit` that of the decoded body (more: 413) where no hook sets another one. What chunks add
  // to a body (extensions, leading zeros and trailers) may take at most 16 KiB and at most `header_limit`
  // (more: 400).
  HttpRequestParser(size_t header_limit, size_t body_limit, Hooks hooks = {});
  ~HttpRequestParser();

  // Reads as much of `data` as it can and returns the count. While the state is kNeedMore the rest must be
  // given again with more data after it; after kComplete it belongs to the next request.
  size_t feed(std::string_view data);
  State state() const;
  // Returns true once a byte of the request has been read, or more than one empty line before it.
  bool started() const;
  // Returns true if the headers are complete, the client waits for "100 Continue" and none of the body has
  // arrived. Returns true once per request.
  bool take_expect_continue();

  // Returns the request: complete except for `id` and `peer` when the state is kComplete; before that, as far
  // as it has arrived.
  HttpRequest& request();
  bool http11() const;
  bool keep_alive() const;  // as the client requested

  // After kFailed these return the HTTP status, and one line for the client.
  int error_status() const;
  const std::string& error_message() const;

  // Prepares for the next request.
  void reset();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hadal::server
