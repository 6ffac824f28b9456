// HTTP/1.1 answers as they arrive, byte by byte if need be, and the events of a text/event-stream inside
// their bodies. No sockets here. One thread an object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace hadal::cli {

// One answer: status line, headers, then a body by Content-Length, in chunks or until the connection ends
// (RFC 9112, section 6.3). Interim answers (1xx) are skipped.
class HttpResponseParser {
 public:
  using OnBody = std::function<void(std::string_view)>;

  explicit HttpResponseParser(OnBody on_body) : on_body_(std::move(on_body)) {}

  // Takes bytes off the connection; returns how many belong to this answer (all, unless it is complete).
  // Error: kDataLoss, what is not HTTP.
  Result<size_t> feed(std::string_view bytes);

  // The connection ended. Error: kDataLoss when the answer was not complete.
  Result<void> finish();

  bool done() const { return state_ == State::kDone; }
  bool started() const { return started_; }  // a byte has been seen
  bool keep_alive() const { return keep_alive_ && !until_close_; }
  int status() const { return status_; }
  bool is_event_stream() const { return event_stream_; }

 private:
  enum class State { kStatus, kHeader, kBody, kBodyToClose, kChunkSize, kChunk, kChunkEnd, kTrailer, kDone };

  Result<void> take_line(std::string_view line);
  Result<void> take_status(std::string_view line);
  Result<void> take_header(std::string_view line);
  Result<void> end_headers();

  OnBody on_body_;
  State state_ = State::kStatus;
  std::string line_;  // the part of a line that has arrived
  bool started_ = false;
  bool keep_alive_ = true;
  bool chunked_ = false;
  bool until_close_ = false;
  bool has_length_ = false;
  bool event_stream_ = false;
  int status_ = 0;
  uint64_t left_ = 0;  // body or chunk bytes still to come
};

// The data of each event: lines "data: …" up to an empty line, joined by newlines; other fields and comments
// are dropped (WHATWG HTML, section 9.2.6).
class SseParser {
 public:
  using OnData = std::function<void(std::string_view)>;

  explicit SseParser(OnData on_data) : on_data_(std::move(on_data)) {}
  void feed(std::string_view bytes);

 private:
  void take_line(std::string_view line);

  OnData on_data_;
  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool after_cr_ = false;
};

}  // namespace hadal::cli
