// This is the socket half of a TLS connection, and the server's certificates. OpenSSL has its own buffers, so
// reads and writes are asynchronous operations of the stream, at most one of each at a time.
//
// A handshake costs up to a millisecond of computation, and a client needs no key for it. It is computed when
// its bytes are read, so each read of a handshake waits for a turn of the I/O thread
// (HttpIoThread::queue_turn). However many clients shake hands at once, other connections wait for at most
// one computation.
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <optional>
#include <utility>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/regular_file.h"
#include "server/http/http_connection.h"

namespace hadal::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

struct TlsContext {
  asio::ssl::context context{asio::ssl::context::tls_server};
};

Result<std::shared_ptr<TlsContext>> load_tls(const HttpServerOptions& options) {
  if (options.tls_keyfile.empty() || options.tls_certfile.empty())
    return invalid_argument("TLS needs both a key and a certificate: the {} file is missing",
                            options.tls_keyfile.empty() ? "key" : "certificate");
  for (const std::string* path : {&options.tls_keyfile, &options.tls_certfile}) {
    const auto file = RegularFile::open(*path);
    if (!file.ok() || file->size() == 0)
      return data_loss("TLS file '{}' cannot be read or is empty{}{}", *path, file.ok() ? "" : ": ",
                       file.ok() ? "" : file.status().message);
  }
  auto tls = std::make_shared<TlsContext>();
  asio::ssl::context& context = tls->context;
  SSL_CTX* const native = context.native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  // With TLS 1.2 only suites with forward secrecy are allowed. A client that has TLS 1.3 gets it, with its
  // own suites.
  if (SSL_CTX_set_cipher_list(native, "ECDHE+AESGCM:ECDHE+CHACHA20") != 1)
    return make_status(StatusCode::kInternal, "this OpenSSL has no ECDHE suites with AES-GCM or ChaCha20");
  SSL_CTX_set_session_cache_mode(native, SSL_SESS_CACHE_OFF);
  error_code ec;
  // This is always set, because otherwise OpenSSL would prompt on the terminal.
  context.set_password_callback([password = options.tls_keyfile_password](
                                    size_t, asio::ssl::context::password_purpose) { return password; },
                                ec);
  context.use_certificate_chain_file(options.tls_certfile, ec);
  if (ec)
    return data_loss("TLS certificate file '{}' contains no usable PEM certificate: {}", options.tls_certfile,
                     ec.message());
  ERR_clear_error();
  context.use_private_key_file(options.tls_keyfile, asio::ssl::context::pem, ec);
  if (ec) {
    if (ERR_GET_REASON(static_cast<unsigned long>(ec.value())) == X509_R_KEY_VALUES_MISMATCH)
      return data_loss("TLS key file '{}' does not belong to the certificate '{}'", options.tls_keyfile,
                       options.tls_certfile);
    return data_loss("TLS key file '{}' contains no usable PEM key, or its password is wrong: {}",
                     options.tls_keyfile, ec.message());
  }
  if (SSL_CTX_check_private_key(native) != 1)
    return data_loss("TLS key file '{}' does not belong to the certificate '{}'", options.tls_keyfile,
                     options.tls_certfile);
  return tls;
}

namespace {

// TurnSocket is the socket below the TLS stream. While a function that asks for a turn is set, every read
// calls that function when there is something to read, and begins in take_turn().
class TurnSocket {
 public:
  using executor_type = tcp::socket::executor_type;
  using lowest_layer_type = tcp::socket::lowest_layer_type;

  explicit TurnSocket(asio::io_context& context) : socket_(context), turn_(context) {}

  void read_in_turns(std::function<void()> ask) { ask_ = std::move(ask); }
  void take_turn() { turn_.cancel(); }
  void close() {
    error_code ignored;
    socket_.close(ignored);
    take_turn();
  }
  tcp::socket& socket() { return socket_; }

  // The TLS stream requires these members.
  executor_type get_executor() { return socket_.get_executor(); }
  lowest_layer_type& lowest_layer() { return socket_.lowest_layer(); }
  template <typename Buffers, typename Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return socket_.async_write_some(buffers, std::forward<Token>(token));
  }
  template <typename Buffers, typename Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    if (!ask_) return socket_.async_read_some(buffers, std::forward<Handler>(handler));
    socket_.async_wait(tcp::socket::wait_read, [this, buffers, handler = std::forward<Handler>(handler)](
                                                   const error_code&) mutable {
      turn_.expires_at(asio::steady_timer::time_point::max());
      turn_.async_wait([this, buffers, handler = std::move(handler)](const error_code&) mutable {
        socket_.async_read_some(buffers, std::move(handler));  // also reports the error of a closed socket
      });
      socket_.is_open() ? ask_() : take_turn();
    });
  }

 private:
  tcp::socket socket_;
  asio::steady_timer turn_;
  std::function<void()> ask_;
};

constexpr int kMaxKeyUpdates = 32;  // between two pieces of data

class TlsConnection final : public HttpConnection {
 public:
  TlsConnection(std::shared_ptr<HttpIoThread> owner, int fd, HttpPeer peer, std::optional<Refusal> refuse,
                std::shared_ptr<TlsContext> tls)
      : HttpConnection(std::move(owner), std::move(peer), refuse),
        tls_(std::move(tls)),
        stream_(thread().context(), tls_->context) {
    error_code ignored;
    socket().assign(tcp::v4(), fd, ignored);
    socket().set_option(tcp::no_delay(true), ignored);
    stream_.next_layer().read_in_turns([this] { ask_for_opening_turn(); });
    SSL_set_msg_callback(stream_.native_handle(), &count_key_update);
    SSL_set_msg_callback_arg(stream_.native_handle(), this);
  }

  void start() override { asio::co_spawn(thread().context(), serve(self()), asio::detached); }

 private:
  using Stream = asio::ssl::stream<TurnSocket>;

  std::shared_ptr<TlsConnection> self() {
    return std::static_pointer_cast<TlsConnection>(shared_from_this());
  }
  tcp::socket& socket() { return stream_.next_layer().socket(); }

  // A key update (RFC 8446, 4.6.3) costs computation and brings no data, so the library goes on reading. A
  // client that sends only key updates is cut off by shutting the socket, which ends its input.
  static void count_key_update(int is_sent, int, int type, const void* message, size_t size, SSL*,
                               void* connection) {
    if (is_sent != 0 || type != SSL3_RT_HANDSHAKE || size == 0) return;
    if (*static_cast<const unsigned char*>(message) != SSL3_MT_KEY_UPDATE) return;
    auto& c = *static_cast<TlsConnection*>(connection);
    if (++c.key_updates_ > kMaxKeyUpdates) ::shutdown(c.socket().native_handle(), SHUT_RDWR);
  }

  static asio::awaitable<void> serve(std::shared_ptr<TlsConnection> c) {
    try {
      co_await converse(*c);
    } catch (const std::exception& error) {
      c->on_fault(error);
    }
  }

  // Waits until resume_reading().
  asio::awaitable<void> wait_for_gate() {
    error_code ignored;
    gate_.emplace(thread().context(), asio::steady_timer::time_point::max());
    co_await gate_->async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    gate_.reset();
  }

  static asio::awaitable<void> converse(TlsConnection& connection) {
    TlsConnection* const c = &connection;
    error_code ec;
    auto token = asio::redirect_error(asio::use_awaitable, ec);
    co_await c->stream_.async_handshake(asio::ssl::stream_base::server, token);
    c->stream_.next_layer().read_in_turns(nullptr);
    {
      const HttpIoThread::Batch batch(c->thread());
      if (ec) {
        c->cut("TLS handshake failed");
        co_return;
      }
      c->on_open();
    }
    while (!c->closed() && !c->shutting_down_) {
      if (!c->wants_data()) {
        co_await c->wait_for_gate();
        continue;
      }
      c->reading_ = true;
      const size_t n = co_await c->stream_.async_read_some(asio::buffer(c->received_), token);
      c->reading_ = false;
      if (c->closed() || c->shutting_down_) break;
      const HttpIoThread::Batch batch(c->thread());
      if (ec) {  // a missing close_notify is an end too: HTTP's own framing tells what is complete
        c->on_end();
        co_return;
      }
      c->key_updates_ = 0;
      c->on_data({c->received_.data(), n});
    }
    if (c->closed()) co_return;
    co_await c->stream_.async_shutdown(token);
    if (c->closed()) co_return;
    c->socket().shutdown(tcp::socket::shutdown_send, ec);
    while (!c->closed()) {
      if (!c->wants_data()) {
        co_await c->wait_for_gate();
        continue;
      }
      const size_t n = co_await c->socket().async_read_some(asio::buffer(c->received_), token);
      if (ec) break;
      c->on_data({c->received_.data(), n});  // counts and discards the data
    }
    const HttpIoThread::Batch batch(c->thread());
    c->on_end();
  }

  void send(std::string_view data) override {
    stream_.async_write_some(asio::buffer(data.data(), data.size()),
                             [c = self()](const error_code& ec, size_t n) {
                               if (c->closed()) return;
                               const HttpIoThread::Batch batch(c->thread());
                               ec ? c->cut("client closed the connection") : c->on_sent(n);
                             });
  }

  void resume_reading() override {
    if (gate_) gate_->cancel();
  }

  void resume_opening() override { stream_.next_layer().take_turn(); }

  // The stream's shutdown must not overlap a read, so the read is cancelled, and serve() does the rest.
  void shut_down_writing() override {
    shutting_down_ = true;
    error_code ignored;
    if (reading_) socket().cancel(ignored);
  }

  void close_socket() override { stream_.next_layer().close(); }

  bool peer_has_closed() override {
    pollfd poll{socket().native_handle(), POLLRDHUP, 0};
    return ::poll(&poll, 1, 0) == 1;
  }

  const std::shared_ptr<TlsContext> tls_;
  Stream stream_;
  std::optional<asio::steady_timer> gate_;
  bool reading_ = false;
  bool shutting_down_ = false;
  int key_updates_ = 0;  // since data last arrived
  std::array<char, 16 << 10> received_;
};

}  // namespace

std::shared_ptr<HttpConnection> make_tls_connection(std::shared_ptr<HttpIoThread> thread, int fd,
                                                    HttpPeer peer, std::optional<Refusal> refuse,
                                                    std::shared_ptr<TlsContext> tls) {
  return std::make_shared<TlsConnection>(std::move(thread), fd, std::move(peer), refuse, std::move(tls));
}

}  // namespace hadal::server
