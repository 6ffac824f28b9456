#include "server/http/http_connection.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "server/http/http_message.h"
#include "server/json/api_error.h"
#include "server/json/random_id.h"

namespace hadal::server {
namespace {

using Clock = HttpIoThread::Clock;
constexpr std::chrono::seconds kLinger{2};
constexpr size_t kPipelineSlack = 4 << 10;
// While more bytes of answers than this wait for a client, its next request waits. The kernel's buffer holds
// much more, so this affects only clients that do not read. Thousands of them must not fill the memory of
// requests.
constexpr size_t kMostUnread = 16 << 10;

// A buffer that grew larger for one answer is freed, because its connection may stay idle for long.
void clear_buffer(std::string& buffer) {
  if (buffer.capacity() > kKeptBufferBytes)
    std::string().swap(buffer);
  else
    buffer.clear();
}

}  // namespace

HttpConnection::HttpConnection(std::shared_ptr<HttpIoThread> thread, HttpPeer peer,
                               std::optional<Refusal> refuse)
    : thread_(std::move(thread)),
      peer_(std::move(peer)),
      refuse_(refuse),
      parser_(thread_->transport().options.limits.header_bytes,
              thread_->transport().options.limits.body_bytes,
              {.on_head = [this](size_t bytes) { return charge_head(bytes); },
               .on_headers = [this](const HttpRequest& request) { return admit(request); },
               .on_growth = [this](size_t bytes) { return charge_body(bytes); }}),
      waiting_(thread_->transport().memory()),
      account_(peer_.slot.account()),
      head_(thread_->transport().memory()),
      unread_(thread_->transport().memory()),
      since_(Clock::now()) {}

HttpConnection::~HttpConnection() {
  thread_->note_busy(*this);
  thread_->leave_turns(*this);
}

// ---- input ---------------------------------------------------------------------------------------------

void HttpConnection::on_open() {
  opening_ = false;
  since_ = Clock::now();
  if (refuse_) {
    return fail(
        *refuse_, 503,
        *refuse_ == Refusal::kPeerConnections ? "too many connections from your address; try again later"
        : *refuse_ == Refusal::kMemory
            ? "the memory for connections is in use (an eighth of max-request-memory); try again later"
            : "too many connections; try again later");
  }
  if (thread_->draining()) return cut("server drains");
  thread_->note_idle(*this);
}

bool HttpConnection::wants_data() const {
  if (closed_ || ended_) return false;
  if (closing_) return discarded_ < max_discarded_;
  if (surplus_) return false;
  const size_t next_read = waiting_bytes(thread_->scratch().size());
  if ((exchange_ || requests_wait()) && !HeadCharge::has_room(*thread_->transport().memory(), next_read))
    return false;
  return input_.size() - input_begin_ < thread_->transport().options.limits.header_bytes + kPipelineSlack;
}

void HttpConnection::on_data(std::string_view data) {
  if (closing_) discarded_ += data.size();
  if (closed_ || closing_) return;
  const bool direct = input_begin_ == input_.size();  // nothing is waiting, so a large body is not copied
  if (direct) data.remove_prefix(parse(data));
  if (!idle()) thread_->note_busy(*this);
  if (closed_ || closing_ || data.empty()) return;
  if (exchange_ && !exchange_->keep_alive_) {
    surplus_ = true;
    return;
  }
  if (input_begin_ != 0) {
    input_.erase(0, input_begin_);
    input_begin_ = 0;
  }
  if (!keep_input(data)) {
    if (!exchange_) return fail(Refusal::kMemory, 503, kOutOfMemory);
    // Lack of memory for later requests must not end the one that is being answered. The later requests are
    // dropped, and the end of the connection tells the client that they got no answer (RFC 9112, 9.3.2).
    thread_->transport().ledger->count(Refusal::kMemory);
    exchange_->keep_alive_ = false;
    surplus_ = true;
    return drop_input();
  }
  if (!direct && parser_.started()) return process_input();
  ask_for_turn();
}

// Keeps bytes that the parser cannot read yet. Returns false if there is no memory for them, which is rare
// because wants_data() checked for room before they were read.
bool HttpConnection::keep_input(std::string_view data) {
  if (!waiting_.grow_to(waiting_bytes(input_.size() + data.size()))) return false;
  input_.append(data);
  return true;
}

void HttpConnection::drop_input() {
  std::string().swap(input_);
  waiting_.clear();
  input_begin_ = 0;
}

// Returns false while so many bytes wait for the client that its further requests have to wait, too.
bool HttpConnection::client_reads() const {
  return queued() <= std::min(kMostUnread, thread_->transport().options.limits.stream_high_water);
}

void HttpConnection::ask_for_turn() {
  if (requests_wait() && !exchange_ && !closing_ && !closed_ && client_reads()) thread_->queue_turn(*this);
}

void HttpConnection::take_turn() {
  if (opening_) return resume_opening();
  process_input();
  if (ended_) on_end();  // the end was postponed until the earlier requests had run
  mark_dirty();          // even if only empty lines were read, because the connection may be idle now
}

void HttpConnection::process_input() {
  if (closed_ || closing_ || exchange_ || input_begin_ == input_.size()) return;
  const std::string_view waiting = std::string_view(input_).substr(input_begin_);
  input_begin_ = input_.size();  // all waiting bytes are given to the parser
  const size_t used = parse(waiting);
  if (closed_ || closing_) return;
  input_begin_ -= waiting.size() - used;
  surplus_ = exchange_ && !exchange_->keep_alive_ && input_begin_ != input_.size();
  if (surplus_ || input_begin_ == input_.size()) drop_input();
  if (wants_data()) resume_reading();
  ask_for_turn();
}

// Feeds the parser and runs the request if it is complete. Returns the number of bytes used, which belong to
// one request.
size_t HttpConnection::parse(std::string_view data) {
  const bool started = parser_.started();
  if (exchange_ || (!started && !client_reads())) return 0;
  size_t used = 0;
  try {
    const MemoryReserve::Pause own;  // the body belongs to one request
    used = parser_.feed(data);
  } catch (const std::bad_alloc&) {
    fail(Refusal::kMemory, 503, kOutOfMemory);
    return used;
  }
  if (!started && parser_.started()) received_at_ = Clock::now();
  switch (parser_.state()) {
    case HttpRequestParser::State::kNeedMore:
      if (parser_.take_expect_continue()) buffer().append("HTTP/1.1 100 Continue\r\n\r\n");
      break;
    case HttpRequestParser::State::kFailed:
      if (parser_.error_status() == 413) discard_a_body();
      fail(parser_.error_status() == 413 ? Refusal::kBodySize : Refusal::kMalformed, parser_.error_status(),
           parser_.error_message());
      break;
    case HttpRequestParser::State::kRefused:
      refuse(admission_.reason, *std::exchange(admission_.refusal, std::nullopt));
      break;
    case HttpRequestParser::State::kComplete:
      dispatch();
      break;
  }
  return used;
}

void HttpConnection::dispatch() {
  HttpTransport& transport = thread_->transport();
  const bool http11 = parser_.http11();
  const bool keep_alive = parser_.keep_alive();
  HttpRequest request = take_request();
  parser_.reset();
  request.body_charge = std::move(charge_);
  account_ = peer_.slot.account();  // until the key of the next request is known
  exchange_ =
      std::make_shared<Exchange>(shared_from_this(), std::move(request), take_head(), http11, keep_alive);
  const auto exchange = exchange_;
  exchange->started_at_ = received_at_;
  const auto handle = exchange->handle();
  // Handlers read the body before they return and keep the parts that they need.
  struct Release {
    HttpRequest& request;
    ~Release() {
      std::string().swap(request.body);
      request.body_charge.reset();
    }
  } release{exchange->request_};
  if (!transport.options.cors_allow_origin.empty() && exchange->method_ == "OPTIONS")
    return exchange->respond(preflight_response(exchange->request_));
  try {
    const MemoryReserve::Pause own;
    transport.handler(handle);
  } catch (const std::exception& error) {
    log_error("http_handler_failed path={} error=\"{}\"", for_log(exchange->path_), error.what());
    if (exchange->streaming_)
      cut("handler failed");
    else
      exchange->respond(exception_response(exchange->request_.style, error));
  }
}

HttpRequest HttpConnection::take_request() {
  HttpRequest request = std::move(parser_.request());
  request.route = admission_.route;
  request.style = std::exchange(admission_.style, ErrorStyle{});
  request.always_logged = std::exchange(admission_.always_logged, false);
  request.tally = std::exchange(admission_.tally, nullptr);
  request.answer_headers = std::exchange(admission_.answer_headers, {});
  const auto client_id = request.header("x-request-id");
  request.id = client_id && valid_request_id(*client_id) ? std::string(*client_id) : random_id();
  request.peer = peer_.address;
  request.client = account_->name;
  request.memory = memory_of(account_);
  return request;
}

HeadCharge HttpConnection::take_head() {
  return std::exchange(head_, HeadCharge(thread_->transport().memory()));
}

// Sends an error of the transport itself, after which the connection cannot continue. The error has the style
// of the route whose body is arriving.
void HttpConnection::fail(Refusal reason, int status, std::string_view message) {
  refuse(reason, error_response(admission_.style, status, message));
}

void HttpConnection::refuse(Refusal reason, HttpResponse response) {
  thread_->transport().ledger->count(reason);
  end_with(std::move(response));
}

void HttpConnection::end_with(HttpResponse response) {
  admission_.always_logged = admission_.always_logged && admission_.has_key;
  HttpRequest request = take_request();
  std::string().swap(request.body);
  charge_.reset();
  const auto exchange = std::make_shared<Exchange>(shared_from_this(), std::move(request), take_head(),
                                                   parser_.http11(), /*keep_alive=*/false);
  exchange->started_at_ = parser_.started() ? received_at_ : Clock::now();
  exchange_ = exchange;
  exchange->respond(std::move(response));
}

void HttpConnection::on_fault(const std::exception& error) noexcept {
  try {
    const MemoryReserve::Scope reserve;
    const HttpIoThread::Batch batch(*thread_);
    log_error("http_connection_failed peer={} error=\"{}\"", peer_.address, error.what());
    if (closed_ || closing_ || opening_ || exchange_ || flushing_ || queued() != 0) return cut("failed");
    const Status status = status_of(error);
    const int code = http_status(status.code);
    if (code == 503) return fail(Refusal::kMemory, code, status.message);
    end_with(error_response(admission_.style, code, status.message));  // a fault is no refusal
  } catch (const std::exception&) {
    cut("failed");
  }
}

void HttpConnection::on_end() {
  if (closed_) return;
  ended_ = true;
  // A half-closed client still gets complete answers and the answers to requests that wait for their turns.
  if (requests_wait() && !exchange_ && !closing_) return;
  if (exchange_ || queued() == 0 || opening_) return cut("client closed the connection");
  close_after_flush();
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
  if (!closed_) unread_.set(MemoryKind::kOutput, queued());
}

void HttpConnection::on_sent(size_t n) {
  sent_ += n;
  if (!flushing_) unread_.set(MemoryKind::kOutput, queued());
  send_in_flight_ = false;
  if (n != 0) progress_at_ = thread_->coarse_now();
  if (exchange_ && exchange_->writable_callback_ && queued() <= exchange_->high_water_ / 2)
    thread_->post([exchange = exchange_] { exchange->run_writable(); });
  ask_for_turn();  // for requests that waited until the client had read its answers
  if (!flushing_) mark_dirty();
}

void HttpConnection::drained() {
  if (!closing_ && thread_->draining()) return close_if_idle();
  if (idle()) thread_->note_idle(*this);
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
  if (wants_data()) resume_reading();
  ask_for_turn();
}

void HttpConnection::close_after_flush() {
  closing_ = true;
  drop_input();
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
    if (wants_data())
      resume_reading();  // there is memory again
    else if (peer_has_closed())
      on_end();
  } else if (closing_ || queued() != 0) {
    return;  // the write time-out above is its deadline
  } else if (parser_.started()) {
    if (now - received_at_ > limits.read_timeout)
      fail(Refusal::kTimeout, 408, "the request did not arrive in time");
  } else if (idle() && now - since_ > limits.idle_timeout) {
    cut("idle");
  }
}

bool HttpConnection::idle() const {
  return !closed_ && !opening_ && !closing_ && !exchange_ && !parser_.started() &&
         input_begin_ == input_.size() && queued() == 0;
}

void HttpConnection::close_if_idle() {
  if (idle()) cut("server drains");
}

void HttpConnection::cut(const char* why) {
  if (closed_) return;
  closed_ = true;
  const auto self = shared_from_this();
  close_socket();
  thread_->leave_turns(*this);  // needs the slot
  peer_.slot.release();
  charge_.reset();
  head_.clear();
  waiting_.clear();
  admission_.tally.reset();
  unread_.clear();
  resume_reading();
  thread_->remove(*this);
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->lost(why);
}

}  // namespace hadal::server
