// Writes the answer to one HTTP request that consists of one or several generations: whole JSON, or a stream
// of events with flow control. Only the I/O thread uses it.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/generation/generation.h"
#include "server/http/http.h"
#include "server/json/api_error.h"

namespace hadal::server {

// EventForm says how events and the end of a stream are written.
enum class EventForm {
  kData,   // "data: <json>\n\n", and "data: [DONE]\n\n" at the end: OpenAI's and SGLang's streams
  kNamed,  // "event: <name>\ndata: <json>\n\n", without an end: Anthropic's, and OpenAI's Responses
  kLines,  // "<json>\n", without an end: Ollama's
};

// Sends events over an exchange. Generations attached to it are paused while the client does not read and
// cancelled when the client goes away, even if the answer is one piece and event() is never called. create()
// makes the object; the code that handles the deltas keeps it alive.
class SseStream : public std::enable_shared_from_this<SseStream> {
 public:
  // `style` is the style of errors, both before the stream begins and in it.
  static std::shared_ptr<SseStream> create(std::shared_ptr<HttpExchange> exchange, ErrorStyle style,
                                           EventForm form = EventForm::kData);

  void attach(std::shared_ptr<Generation> generation);
  // Sends an event. The first event also sends the head.
  void event(std::string_view json) { event({}, json); }
  // Does the same; only kNamed writes `name`.
  void event(std::string_view name, std::string_view json);
  // Sends the end marker of this form, if it has one, and ends the answer.
  void done();
  bool started() const { return started_; }

  // Cancels the attached generations, because the request failed half way. Nothing is sent.
  void cancel_all();
  // Does the same, and informs the client: by a status if the stream has not begun, otherwise by an event and
  // the end of the stream.
  void fail(const Status& status, std::string_view field = {});
  // Ends only this request after a broken invariant, with an answer and a line in the log.
  void fail_internal(const std::exception& error);
  // Returns true once cancel_all() was called.
  bool cancelled() const { return cancelled_; }
  // Sets a callback for the first cancel_all(). It ends work whose result would be further generations.
  // done() drops the callback. If cancel_all() has been called already, the callback is called at once.
  void on_cancel(std::function<void()> callback) {
    if (cancelled_) return callback();
    on_cancel_ = std::move(callback);
  }
  // Returns true once the client has gone, so that nothing more arrives.
  bool disconnected() const { return exchange_->disconnected(); }
  HttpExchange& exchange() { return *exchange_; }

 private:
  SseStream(std::shared_ptr<HttpExchange> exchange, ErrorStyle style, EventForm form)
      : exchange_(std::move(exchange)), style_(style), form_(form) {}
  void start();
  void write(std::string_view data);
  void resume();

  std::shared_ptr<HttpExchange> exchange_;
  ErrorStyle style_;
  EventForm form_;
  std::vector<std::shared_ptr<Generation>> generations_;
  std::function<void()> on_cancel_;
  std::string scratch_;
  bool cancelled_ = false;
  bool started_ = false;
  bool paused_ = false;
};

}  // namespace hadal::server
