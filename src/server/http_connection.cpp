#include "server/http_connection.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "base/log.h"
#include "server/api_error.h"
#include "server/http_message.h"
#include "server/random_id.h"

namespace hadal::server {
namespace {

using Clock = HttpIoThread::Clock;
constexpr std::chrono::seconds kLinger{2};
// A buffer that grew beyond this for one answer is freed when it is empty.
constexpr size_t kKeepCapacity = 32 << 10;
constexpr size_t kPipelineSlack = 4 << 10;

void clear_buffer(std::string& buffer) {
  if (buffer.capacity() > kKeepCapacity)
    std::string().swap(buffer);
  else
    buffer.clear();
}

}  // namespace

HttpConnection::HttpConnection(std::shared_ptr<HttpIoThread> thread, std::string peer, bool refuse)
    : thread_(std::move(thread)),
      peer_(std::move(peer)),
      refuse_(refuse),
      parser_(thread_->transport().options.limits.header_bytes,
              thread_->transport().options.limits.body_bytes),
      since_(Clock::now()) {}

HttpConnection::~HttpConnection() {
  release_body();
}

// ---- input ---------------------------------------------------------------------------------------------

void HttpConnection::on_open() {
  opening_ = false;
  since_ = Clock::now();
  if (refuse_) return fail(503, "too many connections; try again later");
  if (thread_->draining()) cut("server drains");
}

bool HttpConnection::wants_data() const {
  if (closed_ || ended_) return false;
  if (closing_) return true;  // and discards the data
  return input_.size() - input_begin_ < thread_->transport().options.limits.header_bytes + kPipelineSlack;
}

void HttpConnection::on_data(std::string_view data) {
  if (closed_ || closing_) return;
  const bool direct = input_begin_ == input_.size();  // nothing is waiting, so a large body is not copied
  if (direct) data.remove_prefix(parse(data));
  if (closed_ || closing_ || data.empty()) return;
  if (input_begin_ != 0) {
    input_.erase(0, input_begin_);
    input_begin_ = 0;
  }
  input_.append(data);
  if (!direct) process_input();
}

void HttpConnection::process_input() {
  if (closed_ || closing_ || exchange_ || input_begin_ == input_.size()) return;
  if (queued() > thread_->transport().options.limits.stream_high_water) {
    held_back_ = true;
    return;
  }
  const bool was_paused = !wants_data();
  input_begin_ += parse(std::string_view(input_).substr(input_begin_));
  if (input_begin_ == input_.size()) {
    clear_buffer(input_);
    input_begin_ = 0;
  }
  if (was_paused && wants_data()) resume_reading();
}

// Feeds the parser and runs complete requests, as long as each answer is complete at once and the client
// reads the answers. Returns the number of bytes used.
size_t HttpConnection::parse(std::string_view data) {
  const size_t high_water = thread_->transport().options.limits.stream_high_water;
  size_t used = 0;
  while (used < data.size() && !exchange_ && !closing_ && !closed_ && queued() <= high_water) {
    const bool started = parser_.started();
    used += parser_.feed(data.substr(used));
    if (!started && parser_.started()) received_at_ = Clock::now();
    if (parser_.state() != HttpRequestParser::State::kFailed && !charge_body()) {
      fail(503, "the server's limit for bodies of all requests is reached; try again later");
      break;
    }
    if (parser_.state() == HttpRequestParser::State::kNeedMore) {
      if (parser_.take_expect_continue()) buffer().append("HTTP/1.1 100 Continue\r\n\r\n");
      break;
    }
    if (parser_.state() == HttpRequestParser::State::kFailed)
      fail(parser_.error_status(), parser_.error_message());
    else
      dispatch();
  }
  if (used < data.size() && queued() > high_water) held_back_ = true;
  return used;
}

// Counts the growth of the request's body. Returns false if there is no room for it.
bool HttpConnection::charge_body() {
  HttpTransport& transport = thread_->transport();
  const size_t size = parser_.request().body.size();
  if (size <= charged_) return true;
  const size_t total = transport.body_bytes += size - charged_;
  charged_ = size;
  return total <= transport.options.limits.total_body_bytes;
}

void HttpConnection::release_body() {
  thread_->transport().body_bytes -= charged_;
  charged_ = 0;
}

void HttpConnection::dispatch() {
  HttpTransport& transport = thread_->transport();
  const bool http11 = parser_.http11();
  const bool keep_alive = parser_.keep_alive();
  HttpRequest request = std::move(parser_.request());
  parser_.reset();
  const auto client_id = request.header("x-request-id");
  request.id = client_id && valid_request_id(*client_id) ? std::string(*client_id) : random_id();
  request.peer = peer_;
  exchange_ = std::make_shared<Exchange>(shared_from_this(), std::move(request), http11, keep_alive);
  const auto exchange = exchange_;
  exchange->started_at_ = received_at_;
  const auto handle = exchange->handle();
  // Handlers read the body before they return and keep the parts that they need.
  struct Release {
    HttpConnection& connection;
    ~Release() { connection.release_body(); }
  } release{*this};
  if (!transport.options.cors_allow_origin.empty() && exchange->method_ == "OPTIONS")
    return exchange->respond(preflight_response(exchange->request_));
  try {
    transport.handler(handle);
  } catch (const std::exception& error) {
    log_error("http_handler_failed path={} error=\"{}\"", for_log(exchange->path_), error.what());
    if (exchange->streaming_)
      cut("handler failed");
    else
      exchange->respond(
          error_response(ErrorStyle::kSglang, 500, "internal error; the server's log has the details"));
  }
}

// Sends an answer of the transport itself, after which the connection cannot continue.
void HttpConnection::fail(int status, std::string_view message) {
  HttpResponse response = error_response(ErrorStyle::kSglang, status, message);
  HttpRequest request = std::move(parser_.request());  // as far as it has arrived
  std::string().swap(request.body);
  release_body();
  request.id = random_id();
  request.peer = peer_;
  const auto exchange = std::make_shared<Exchange>(shared_from_this(), std::move(request), /*http11=*/true,
                                                   /*keep_alive=*/false);
  exchange->started_at_ = parser_.started() ? received_at_ : Clock::now();
  exchange_ = exchange;
  exchange->respond(std::move(response));
}

void HttpConnection::on_end() {
  if (closed_) return;
  ended_ = true;
  if (exchange_ || queued() == 0 || opening_) return cut("client closed the connection");
  close_after_flush();  // a half-closed client still gets the complete answer
}

// ---- output --------------------------------------------------------------------------------------------

void HttpConnection::mark_dirty() {
  if (dirty_ || closed_) return;
  dirty_ = true;
  thread_->mark_dirty(shared_from_this());
}

std::string& HttpConnection::buffer() {
  if (queued() == 0) progress_at_ = thread_->coarse_now();
  mark_dirty();
  return pending_;
}

void HttpConnection::flush() {
  dirty_ = false;
  if (closed_) return;
  process_input();
  flushing_ = true;
  while (!send_in_flight_ && !closed_) {
    if (sent_ == sending_.size()) {
      clear_buffer(sending_);
      sent_ = 0;
      std::swap(sending_, pending_);
    }
    if (sending_.empty()) {
      drained();
      break;
    }
    send_in_flight_ = true;
    send(std::string_view(sending_).substr(sent_));
  }
  flushing_ = false;
}

void HttpConnection::on_sent(size_t n) {
  sent_ += n;
  send_in_flight_ = false;
  if (n != 0) progress_at_ = thread_->coarse_now();
  const size_t high_water = thread_->transport().options.limits.stream_high_water;
  if (exchange_ && exchange_->writable_callback_ && queued() <= high_water / 2)
    thread_->post([exchange = exchange_] { exchange->run_writable(); });
  if (held_back_ && queued() <= high_water) {
    held_back_ = false;
    mark_dirty();  // requests that waited until the client had read its answers
  }
  if (!flushing_) mark_dirty();
}

void HttpConnection::drained() {
  if (!closing_ && thread_->draining()) return close_if_idle();
  if (!closing_ || lingering_ || exchange_) return;
  if (ended_) return cut("done");
  lingering_ = true;
  since_ = Clock::now();
  shut_down_writing();
  resume_reading();
}

void HttpConnection::exchange_done(bool keep_alive) {
  exchange_.reset();
  since_ = Clock::now();
  if (!keep_alive || thread_->draining()) return close_after_flush();
  if (input_begin_ != input_.size()) mark_dirty();  // the next pipelined request, once this task has ended
}

void HttpConnection::close_after_flush() {
  closing_ = true;
  std::string().swap(input_);
  input_begin_ = 0;
  resume_reading();
  mark_dirty();
}

// ---- time-outs and the end -----------------------------------------------------------------------------

void HttpConnection::check_deadlines(Clock::time_point now) {
  if (closed_) return;
  const HttpLimits& limits = thread_->transport().options.limits;
  if (opening_) {
    if (now - since_ > limits.read_timeout) cut("handshake timed out");
  } else if (lingering_) {
    if (now - since_ > kLinger) cut("done");
  } else if (queued() != 0 && now - progress_at_ > limits.write_timeout) {
    cut("client does not read");
  } else if (exchange_) {
    if (!wants_data() && peer_has_closed()) on_end();
  } else if (closing_ || queued() != 0) {
    return;  // the write time-out above is its deadline
  } else if (parser_.started()) {
    if (now - received_at_ > limits.read_timeout) fail(408, "the request did not arrive in time");
  } else if (now - since_ > limits.idle_timeout) {
    cut("idle");
  }
}

void HttpConnection::close_if_idle() {
  if (!closed_ && !opening_ && !closing_ && !exchange_ && !parser_.started() &&
      input_begin_ == input_.size() && queued() == 0)
    cut("server drains");
}

void HttpConnection::cut(const char* why) {
  if (closed_) return;
  closed_ = true;
  const auto self = shared_from_this();
  close_socket();
  resume_reading();
  thread_->remove(*this);
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->lost(why);
}

// ---- exchange ------------------------------------------------------------------------------------------

Exchange::Exchange(std::shared_ptr<HttpConnection> connection, HttpRequest request, bool http11,
                   bool keep_alive)
    : thread_(connection->thread_),
      connection_(std::move(connection)),
      request_(std::move(request)),
      method_(request_.method),
      path_(request_.path),
      id_(request_.id),
      cors_(!thread_->transport().options.cors_allow_origin.empty() && request_.header("origin").has_value()),
      head_only_(request_.method == "HEAD"),
      http11_(http11),
      keep_alive_(keep_alive) {}

std::shared_ptr<HttpExchange> Exchange::handle() {
  return {this, [self = shared_from_this()](HttpExchange*) mutable {
            HttpIoThread& thread = *self->thread_;
            if (thread.is_current()) return self->released();
            thread.post([self = std::move(self)] { self->released(); });
          }};
}

void Exchange::released() {
  if (!connection_) return;
  const HttpIoThread::Batch batch(*thread_);
  log_error("http_request_unanswered path={} id={}", for_log(path_), for_log(id_));
  if (streaming_)
    connection_->cut("the handler gave up");
  else
    respond(error_response(ErrorStyle::kSglang, 500, "the request was dropped without an answer"));
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
  server::append_head(connection_->buffer(), response, head);
}

void Exchange::respond(HttpResponse response) {
  if (!connection_) return;
  if (streaming_) return log_error("http_misuse: respond() after start_stream() path={}", for_log(path_));
  append_head(response, false);
  if (!bodiless_) {
    connection_->buffer().append(response.body);
    body_bytes_ = response.body.size();
  }
  complete();
}

void Exchange::start_stream(HttpResponse head) {
  if (!connection_) return;
  if (streaming_) return log_error("http_misuse: start_stream() twice path={}", for_log(path_));
  streaming_ = true;
  append_head(head, true);
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
  char size[20];
  char* begin = size + sizeof(size);
  *--begin = '\n';
  *--begin = '\r';
  for (size_t rest = data.size(); rest != 0; rest >>= 4) *--begin = "0123456789abcdef"[rest & 15];
  out.append(begin, size + sizeof(size));
  out.append(data);
  out.append("\r\n", 2);
}

bool Exchange::writable() const {
  return !connection_ || connection_->queued() <= thread_->transport().options.limits.stream_high_water;
}

void Exchange::finish() {
  if (!connection_) return;
  if (!streaming_) return log_error("http_misuse: finish() before start_stream() path={}", for_log(path_));
  if (chunked_ && !bodiless_) connection_->buffer().append("0\r\n\r\n");
  complete();
}

void Exchange::log_access(int status, std::string_view note) const {
  if (!thread_->transport().options.access_log || log_level() > LogLevel::kInfo) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - started_at_).count();
  log_info("http method={} path={} status={} bytes={} seconds={:.4f} peer={} id={}{}{}{}", for_log(method_),
           for_log(path_), status, body_bytes_, seconds, connection_ ? connection_->peer_ : "-", for_log(id_),
           note.empty() ? "" : " note=\"", note, note.empty() ? "" : "\"");
}

void Exchange::complete() {
  log_access(status_, "");
  const auto connection = std::exchange(connection_, nullptr);
  // The callbacks often own the exchange, so dropping them here breaks the cycle.
  const auto writable_callback = std::exchange(writable_callback_, nullptr);
  const auto disconnect_callback = std::exchange(disconnect_callback_, nullptr);
  connection->exchange_done(keep_alive_);
}

void Exchange::lost(const char* why) {
  if (!connection_) return;
  disconnected_ = true;
  log_access(499, why);
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
