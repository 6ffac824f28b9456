// Reads HTTP/1.1 answers as their bytes arrive, without sockets. One thread uses an object.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

#include "base/result.h"

namespace hadal::client {

// Reads one answer: status line, headers, and a body that has a Content-Length, comes in chunks, or lasts
// until the connection ends (RFC 9112, section 6.3). Interim answers (1xx) are skipped. Lines must end in CR
// LF.
class HttpResponseParser {
 public:
  using OnBody = std::function<void(std::string_view)>;

  explicit HttpResponseParser(OnBody on_body);
  ~HttpResponseParser();

  // Reads bytes that came from the connection. Returns how many of them belong to this answer: all of them,
  // unless the answer is complete before the last one. The error is kDataLoss if the bytes are not HTTP.
  Result<size_t> feed(std::string_view bytes);

  // Ends the answer with the connection. The error is kDataLoss if the answer is not complete.
  Result<void> finish();

  bool done() const;
  bool started() const;     // a byte has arrived
  bool keep_alive() const;  // the connection may carry another exchange
  int status() const;       // 0 before the status line is known
  bool is_event_stream() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hadal::client
