// Implements one request and its answer: the half of http_connection.h that handlers see.
#include <exception>
#include <utility>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "server/admission/request_tally.h"
#include "server/http/http_connection.h"
#include "server/http/http_message.h"
#include "server/json/api_error.h"

namespace hadal::server {
namespace {

// Appending restores the buffer's size unless complete() was called, because half an answer must not be sent.
class Appending {
 public:
  explicit Appending(std::string& out) : out_(out), size_(out.size()) {}
  ~Appending() {
    if (!complete_) out_.resize(size_);
  }
  Appending(const Appending&) = delete;
  Appending& operator=(const Appending&) = delete;
  void complete() { complete_ = true; }

 private:
  std::string& out_;
  const size_t size_;
  bool complete_ = false;
};

}  // namespace

Exchange::Exchange(std::shared_ptr<HttpConnection> connection, HttpRequest request, HeadCharge head,
                   bool http11, bool keep_alive)
    : thread_(connection->thread_),
      connection_(std::move(connection)),
      request_(std::move(request)),
      head_(std::move(head)),
      method_(request_.method),
      path_(request_.path),
      id_(request_.id),
      key_(key_name_of(request_.client)),
      cors_(!thread_->transport().options.cors_allow_origin.empty() && request_.header("origin").has_value()),
      head_only_(request_.method == "HEAD"),
      http11_(http11),
      keep_alive_(keep_alive),
      always_logged_(request_.always_logged),
      high_water_(thread_->transport().options.limits.stream_high_water) {}

std::shared_ptr<HttpExchange> Exchange::handle() {
  return {this, [self = shared_from_this()](HttpExchange*) mutable {
            HttpIoThread& thread = *self->thread_;
            if (thread.is_current()) return self->released();
            thread.release(std::move(self));
          }};
}

// The answer must end here, because handlers have no time-out that would end it later.
void Exchange::released() noexcept {
  if (!connection_) return;
  const MemoryReserve::Scope reserve;
  const HttpIoThread::Batch batch(*thread_);
  try {
    log_error("http_request_unanswered path={} id={}", for_log(path_), for_log(id_));
    if (streaming_)
      connection_->cut("the handler gave up");
    else
      respond(error_response(request_.style, 500, "the request was dropped without an answer"));
  } catch (const std::exception& error) {
    if (const auto connection = connection_) connection->on_fault(error);
  }
}

void Exchange::append_head(const HttpResponse& response, bool streaming) {
  HttpTransport& transport = thread_->transport();
  status_ = response.status;
  bodiless_ = head_only_ || status_ == 204 || status_ == 304 || status_ < 200;
  chunked_ = streaming && http11_;
  if ((streaming && !http11_) || thread_->draining()) keep_alive_ = false;
  ResponseHead head;
  head.http11 = http11_;
  head.close = !keep_alive_;
  if (!streaming && status_ != 204 && status_ != 304) head.content_length = response.body.size();
  head.chunked = chunked_ && status_ != 204 && status_ != 304;
  head.cors = cors_;
  head.cors_allow_origin = transport.options.cors_allow_origin;
  head.request_id = id_;
  head.date = thread_->date();
  head.more = request_.answer_headers;
  server::append_head(connection_->buffer(), response, head);
}

void Exchange::respond(HttpResponse response) {
  if (!connection_) return;
  if (streaming_) return log_error("http_misuse: respond() after start_stream() path={}", for_log(path_));
  // Small answers are always sent, so that a full server can still say that it is full.
  constexpr size_t kSmall = size_t{64} << 10;
  const size_t size = response.body.size();
  if (size > kSmall && !connection_->unread_.try_add(MemoryKind::kOutput, size)) {
    response = error_response(request_.style,
                              memory_exhausted(*thread_->transport().memory(), MemoryKind::kOutput, size));
  }
  Appending appending(connection_->buffer());
  append_head(response, false);
  if (!bodiless_) {
    connection_->buffer().append(response.body);
    body_bytes_ = response.body.size();
  }
  appending.complete();
  complete();
}

void Exchange::start_stream(HttpResponse head) {
  if (!connection_) return;
  if (streaming_) return log_error("http_misuse: start_stream() twice path={}", for_log(path_));
  Appending appending(connection_->buffer());
  append_head(head, true);
  appending.complete();
  streaming_ = true;
  if (!head.body.empty()) write(head.body);
}

void Exchange::write(std::string_view data) {
  if (!connection_ || data.empty() || bodiless_) return;
  if (!streaming_) return log_error("http_misuse: write() before start_stream() path={}", for_log(path_));
  std::string& out = connection_->buffer();
  body_bytes_ += data.size();
  if (!chunked_) {
    out.append(data);
    return;
  }
  Appending appending(out);
  char size[20];
  char* begin = size + sizeof(size);
  *--begin = '\n';
  *--begin = '\r';
  for (size_t rest = data.size(); rest != 0; rest >>= 4) *--begin = "0123456789abcdef"[rest & 15];
  out.append(begin, size + sizeof(size));
  out.append(data);
  out.append("\r\n", 2);
  appending.complete();
}

bool Exchange::writable() const {
  return !connection_ || connection_->queued() <= high_water_;
}

void Exchange::finish() {
  if (!connection_) return;
  if (!streaming_) return log_error("http_misuse: finish() before start_stream() path={}", for_log(path_));
  if (chunked_ && !bodiless_) connection_->buffer().append("0\r\n\r\n");
  complete();
}

// Records in the log and in the tally how the exchange ended: with a complete answer, or because the client
// left.
void Exchange::answered(int status, std::string_view note) {
  const double seconds = std::chrono::duration<double>(HttpIoThread::Clock::now() - started_at_).count();
  if (const auto tally = std::exchange(request_.tally, nullptr))
    tally->set_answered(status, seconds, id_, connection_->peer_.address);
  thread_->transport().answers.count(request_.route, status);
  if (!thread_->transport().options.access_log || log_level() > LogLevel::kInfo) return;
  if (!always_logged_ && !thread_->take_stranger_line()) return;
  log_info("http method={} path={} status={} bytes={} seconds={:.4f} peer={}{}{} id={}{}{}{}",
           for_log(method_), for_log(path_), status, body_bytes_, seconds, connection_->peer_.address,
           key_.empty() ? "" : " key=", key_, for_log(id_), note.empty() ? "" : " note=\"", note,
           note.empty() ? "" : "\"");
}

void Exchange::complete() {
  const MemoryReserve::Scope reserve;
  answered(status_, "");
  const auto connection = std::exchange(connection_, nullptr);
  // The callbacks often own the exchange, so dropping them here breaks the cycle.
  const auto writable_callback = std::exchange(writable_callback_, nullptr);
  const auto disconnect_callback = std::exchange(disconnect_callback_, nullptr);
  connection->exchange_done(keep_alive_);
}

void Exchange::lost(const char* why) {
  if (!connection_) return;
  const MemoryReserve::Scope reserve;
  disconnected_ = true;
  answered(499, why);
  const auto connection = std::exchange(connection_, nullptr);
  const auto writable_callback = std::exchange(writable_callback_, nullptr);
  const auto disconnect_callback = std::exchange(disconnect_callback_, nullptr);
  if (!disconnect_callback) return;
  const HttpIoThread::Batch batch(*thread_);
  try {
    disconnect_callback();
  } catch (const std::exception& error) {
    log_error("http_disconnect_callback_failed path={} error=\"{}\"", for_log(path_), error.what());
  }
}

void Exchange::on_writable(std::function<void()> callback) {
  if (!connection_) return;
  writable_callback_ = std::move(callback);
  if (writable() && writable_callback_) thread_->post([self = shared_from_this()] { self->run_writable(); });
}

void Exchange::run_writable() {
  if (!connection_ || !writable_callback_ || !writable()) return;
  const auto callback = std::exchange(writable_callback_, nullptr);
  callback();
}

void Exchange::on_disconnect(std::function<void()> callback) {
  if (connection_) disconnect_callback_ = std::move(callback);
}

}  // namespace hadal::server
