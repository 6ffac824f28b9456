#include "server/generation/sse.h"

#include <utility>

#include "base/log.h"
#include "base/memory_reserve.h"

namespace hadal::server {

std::shared_ptr<SseStream> SseStream::create(std::shared_ptr<HttpExchange> exchange, ErrorStyle style,
                                             EventForm form) {
  std::shared_ptr<SseStream> stream(new SseStream(std::move(exchange), style, form));
  // The pointer is weak because the exchange must not keep its owner alive.
  stream->exchange_->on_disconnect([weak = std::weak_ptr(stream)] {
    if (const auto self = weak.lock()) self->cancel_all();
  });
  return stream;
}

void SseStream::attach(std::shared_ptr<Generation> generation) {
  const MemoryReserve::Scope reserve;  // it runs already, and only attached generations can be cancelled
  if (paused_) generation->pause();
  generations_.push_back(std::move(generation));
}

void SseStream::start() {
  HttpResponse head;
  head.content_type =
      form_ == EventForm::kLines ? "application/x-ndjson" : "text/event-stream; charset=utf-8";
  head.headers.emplace_back("Cache-Control", "no-cache");
  head.headers.emplace_back("X-Accel-Buffering", "no");  // a proxy must not buffer events
  exchange_->start_stream(std::move(head));
  started_ = true;  // before this, a failure could still be reported by a status
}

void SseStream::event(std::string_view name, std::string_view json) {
  if (!started_) start();
  scratch_.clear();
  if (form_ == EventForm::kNamed) {
    scratch_ += "event: ";
    scratch_ += name;
    scratch_ += '\n';
  }
  if (form_ != EventForm::kLines) scratch_ += "data: ";
  scratch_ += json;
  scratch_ += form_ == EventForm::kLines ? "\n" : "\n\n";
  write(scratch_);
}

void SseStream::write(std::string_view data) {
  exchange_->write(data);
  if (paused_ || exchange_->writable()) return;
  paused_ = true;
  for (const auto& generation : generations_) generation->pause();
  exchange_->on_writable([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->resume();
  });
}

// Resumes the generations. Nothing is allocated before they run again, because generations that stayed paused
// after a failure would be held for ever. If one of them fails when it runs, the answer ends.
void SseStream::resume() {
  paused_ = false;
  try {
    // A resumed generation may write so much at once that all are paused again. The rest then continue to
    // wait. It may also end the answer, which empties the list.
    for (size_t i = 0; i < generations_.size() && !paused_; ++i) {
      const auto generation = generations_[i];
      generation->resume();
    }
  } catch (const std::exception& error) {
    fail_internal(error);
  }
}

void SseStream::done() {
  if (!started_) start();
  if (form_ == EventForm::kData) exchange_->write("data: [DONE]\n\n");
  exchange_->finish();
  generations_.clear();
  on_cancel_ = nullptr;
}

void SseStream::fail(const Status& status, std::string_view field) {
  cancel_all();
  if (!started_) return exchange_->respond(error_response(style_, status, field));
  event("error", error_event(style_, http_status(status.code), status.message));
  done();
}

void SseStream::fail_internal(const std::exception& error) {
  const MemoryReserve::Scope reserve;
  log_error("request failed path={} error=\"{}\"", exchange_->request().path, error.what());
  fail(status_of(error));
}

void SseStream::cancel_all() {
  cancelled_ = true;
  if (const auto callback = std::exchange(on_cancel_, nullptr)) callback();
  const auto generations = std::move(generations_);
  generations_.clear();
  for (const auto& generation : generations) generation->cancel();
}

}  // namespace hadal::server
