// Writes the answer to one HTTP request that consists of one or several generations: whole JSON, or
// server-sent events with flow control. Only the I/O thread uses it.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/generation.h"
#include "server/http.h"

namespace hadal::server {

// Sends `data: <json>\n\n` events over an exchange. Generations attached to it are paused while the client
// does not read and cancelled when it goes away, even if the answer is one piece and event() is never called.
// create() makes it; the code that handles the deltas keeps it alive.
class SseStream : public std::enable_shared_from_this<SseStream> {
 public:
  static std::shared_ptr<SseStream> create(std::shared_ptr<HttpExchange> exchange);

  void attach(std::shared_ptr<Generation> generation);
  // Sends an event, and the head before the first one.
  void event(std::string_view json);
  // Sends "data: [DONE]\n\n" and ends the answer.
  void done();
  bool started() const { return started_; }

  // Cancels what was attached, because the request failed half way. Nothing is sent.
  void cancel_all();
  // Does the same, and informs the client: by a status before the stream has begun, otherwise by an event and
  // the end.
  void fail(ErrorStyle style, const Status& status, std::string_view field = {});
  // Ends only this request after a broken invariant, with an answer and a line in the log.
  void fail_internal(ErrorStyle style, const std::exception& error);
  // Becomes true once cancel_all() was called; other threads may read it.
  std::shared_ptr<const std::atomic<bool>> cancelled() const { return cancelled_; }
  // Returns true once the client has gone, so nothing that is sent arrives.
  bool disconnected() const { return exchange_->disconnected(); }
  HttpExchange& exchange() { return *exchange_; }

 private:
  explicit SseStream(std::shared_ptr<HttpExchange> exchange) : exchange_(std::move(exchange)) {}
  void start();
  void write(std::string_view data);
  void resume();

  std::shared_ptr<HttpExchange> exchange_;
  std::vector<std::shared_ptr<Generation>> generations_;
  std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);
  std::string scratch_;
  bool started_ = false;
  bool paused_ = false;
};

}  // namespace hadal::server
