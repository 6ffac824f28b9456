// HttpConnection is the protocol half of one client's connection. It parses requests, runs one exchange at a
// time, frames and buffers answers and enforces the time-outs. The socket half (http_connection_plain.cpp,
// http_connection_tls.cpp) derives from it and only moves bytes. Everything runs on the connection's I/O
// thread. A request that arrives alone is read and run at once. Each request that follows it (pipelining)
// waits for a turn of its own (HttpIoThread::queue_turn), so that it delays other connections by one request
// only.
//
// The life cycle is opening → (idle → receiving → answering)* → flushing the last answer → lingering →
// closed. While a connection lingers, the server's side is shut. Bytes that the client still sends are
// discarded for a moment, up to a limit, so that a reset does not destroy the answer on its way. Any failure
// leads straight to closed.
#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "server/http/http.h"
#include "server/http/http_io_thread.h"
#include "server/http/http_parser.h"

namespace hadal::server {

class HttpConnection;

// HttpPeer is the other side of a connection.
struct HttpPeer {
  std::string address;  // "127.0.0.1:54321"
  ConnectionSlot slot;  // held until the connection is closed
  // The memory of the connection itself, which is counted until the connection is destroyed. It is counted
  // whatever is free, because a server without memory must still answer small requests.
  MemoryCharge memory = MemoryCharge();
};

class Exchange final : public HttpExchange, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(std::shared_ptr<HttpConnection> connection, HttpRequest request, HeadCharge head, bool http11,
           bool keep_alive);

  // Returns the handler's pointer: if its last copy is dropped before the answer is complete, the client gets
  // a 500.
  std::shared_ptr<HttpExchange> handle();

  const HttpRequest& request() const override { return request_; }
  HttpRequest& mutable_request() override { return request_; }
  IoThread& io() override { return *thread_; }
  void respond(HttpResponse response) override;
  void start_stream(HttpResponse head) override;
  void write(std::string_view data) override;
  bool writable() const override;
  void set_high_water(size_t bytes) override { high_water_ = bytes; }
  void finish() override;
  void on_writable(std::function<void()> callback) override;
  void on_disconnect(std::function<void()> callback) override;
  bool disconnected() const override { return disconnected_; }

 private:
  friend class HttpConnection;
  friend class HttpIoThread;

  void append_head(const HttpResponse& response, bool streaming);
  void complete();
  void lost(const char* why);
  void released() noexcept;
  void run_writable();
  void answered(int status, std::string_view note);

  const std::shared_ptr<HttpIoThread> thread_;
  std::shared_ptr<HttpConnection> connection_;  // null once the answer is complete or the client is gone
  HttpRequest request_;
  const HeadCharge head_;  // the memory of its line and its headers
  // These copies serve the log and the head, because the handler may take the request apart.
  std::string method_, path_, id_, key_;  // key_: the name of the client's key, or empty
  bool cors_;
  bool head_only_;  // the method is HEAD
  bool http11_;
  bool keep_alive_;
  const bool always_logged_;
  size_t high_water_;
  bool streaming_ = false;
  bool chunked_ = false;
  bool bodiless_ = false;
  bool disconnected_ = false;
  int status_ = 0;
  uint64_t body_bytes_ = 0;
  HttpIoThread::Clock::time_point started_at_;
  std::function<void()> writable_callback_;
  std::function<void()> disconnect_callback_;
  std::shared_ptr<Exchange> next_released_;  // HttpIoThread::release, guarded by the thread's lock
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  // `refuse` says that the server is full (kConnections, kPeerConnections, kMemory), so the client gets a
  // 503.
  HttpConnection(std::shared_ptr<HttpIoThread> thread, HttpPeer peer, std::optional<Refusal> refuse);
  virtual ~HttpConnection();

  virtual void start() = 0;

  // HttpIoThread calls these.
  void flush();
  void take_turn();
  void check_deadlines(HttpIoThread::Clock::time_point now);
  bool idle() const;  // open and without a request, whole or in part
  void close_if_idle();
  void cut(const char* why);

 protected:
  // The socket half calls these, inside a Batch. `data` is read before on_data returns.
  void on_open();
  void on_data(std::string_view data);
  // Handles an exception, lack of memory included: answers 503 if no answer has begun, otherwise cuts the
  // connection.
  void on_fault(const std::exception& error) noexcept;
  void on_end();           // the client closed, or the connection broke
  void on_sent(size_t n);  // n bytes given to send() have reached the kernel; the rest is given again

  HttpIoThread& thread() { return *thread_; }
  bool closed() const { return closed_; }
  bool lingering() const { return lingering_; }
  // Returns false while the socket must not be read: enough bytes wait here behind a request, there is no
  // memory for more, or no further request will be read. After the last answer it returns false once enough
  // was discarded. Reading pauses until resume_reading().
  bool wants_data() const;
  // Asks for a turn in which resume_opening() is called.
  void ask_for_opening_turn() { thread_->queue_turn(*this); }

  // The socket half implements these. After send, on_sent() or on_end() follows, within the call or later.
  // `data` stays valid until then.
  virtual void send(std::string_view data) = 0;
  virtual void resume_reading() = 0;
  virtual void resume_opening() {}
  virtual void shut_down_writing() = 0;
  virtual void close_socket() = 0;
  virtual bool peer_has_closed() = 0;  // called from time to time while reading is paused

 private:
  friend class Exchange;
  friend class HttpIoThread;

  size_t queued() const { return pending_.size() + sending_.size() - sent_; }
  std::string& buffer();  // answers are appended to it, and the connection will be flushed
  void mark_dirty();
  bool requests_wait() const { return input_begin_ != input_.size() && !parser_.started(); }
  bool client_reads() const;
  void ask_for_turn();
  void process_input();
  size_t parse(std::string_view data);
  std::optional<HttpRequestParser::BodyRule> admit(const HttpRequest& request);
  bool charge_head(size_t bytes);
  bool charge_body(size_t bytes);
  // Reads and drops a refused body, because most clients send all of it before they read the refusal.
  void discard_a_body();
  bool keep_input(std::string_view data);
  void drop_input();
  void dispatch();
  void fail(Refusal reason, int status, std::string_view message);
  // Returns the request as far as it has arrived, with its id, its client and what its admission decided.
  HttpRequest take_request();
  HeadCharge take_head();
  void refuse(Refusal reason, HttpResponse response);
  void end_with(HttpResponse response);  // the connection's last answer
  void exchange_done(bool keep_alive);
  void close_after_flush();
  void drained();

  const std::shared_ptr<HttpIoThread> thread_;
  HttpPeer peer_;
  const std::optional<Refusal> refuse_;
  HttpRequestParser parser_;
  std::shared_ptr<Exchange> exchange_;  // the request being answered
  std::string input_;                   // bytes that the parser has not read yet, from input_begin_ on
  size_t input_begin_ = 0;
  HeadCharge waiting_;  // the memory of input_
  // These belong to the request that is arriving.
  std::shared_ptr<ClientAccount> account_;  // the client's
  HeadCharge head_;
  std::shared_ptr<BodyCharge> charge_;  // null while it has no body
  HttpAdmission admission_;
  std::string pending_;  // answers that have not been given to the socket yet
  std::string sending_;  // given to the socket; the bytes from sent_ on are not sent yet
  size_t sent_ = 0;
  MemoryCharge unread_;  // answers that the client has not read when a batch ends
  bool send_in_flight_ = false;
  bool opening_ = true;
  bool dirty_ = false;
  bool flushing_ = false;
  bool surplus_ = false;  // the client has sent more after its last request
  size_t discarded_ = 0;  // bytes that came after the last answer
  // At most this many bytes after the last answer are read and discarded; the rest is not read.
  size_t max_discarded_ = size_t{1} << 20;
  bool ended_ = false;    // the client sends nothing more
  bool closing_ = false;  // closes once the buffers are empty
  bool lingering_ = false;
  bool closed_ = false;
  HttpIoThread::Clock::time_point since_;        // begin of the phase: accepted, idle, lingering
  HttpIoThread::Clock::time_point received_at_;  // time of the request's first byte
  HttpIoThread::Clock::time_point progress_at_;  // when the client last received a byte
  size_t slot_ = 0;                              // index in the thread's list
  // This holds the node of the thread's list of idle connections while the connection is busy. idle_at_
  // always refers to that node.
  std::list<HttpConnection*> idle_place_{this};
  const std::list<HttpConnection*>::iterator idle_at_ = idle_place_.begin();
  // This does the same for the thread's lists of connections that wait for a turn.
  std::list<HttpConnection*> turn_place_{this};
  const std::list<HttpConnection*>::iterator turn_at_ = turn_place_.begin();
};

// TlsContext holds loaded TLS certificates and keys; it is opaque here.
struct TlsContext;
Result<std::shared_ptr<TlsContext>> load_tls(const HttpServerOptions& options);

// These take over the accepted, non-blocking socket `fd`. Only the thread itself may call them.
std::shared_ptr<HttpConnection> make_plain_connection(std::shared_ptr<HttpIoThread> thread, int fd,
                                                      HttpPeer peer, std::optional<Refusal> refuse);
std::shared_ptr<HttpConnection> make_tls_connection(std::shared_ptr<HttpIoThread> thread, int fd,
                                                    HttpPeer peer, std::optional<Refusal> refuse,
                                                    std::shared_ptr<TlsContext> tls);

}  // namespace hadal::server
