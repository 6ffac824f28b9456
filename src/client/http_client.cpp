#include "client/http_client.h"

#include <sys/resource.h>

#include <array>
#include <optional>
#include <unordered_set>
#include <vector>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/json.hpp>

#include "client/http_response_parser.h"
#include "client/sse_parser.h"

namespace hadal::client {

namespace asio = boost::asio;
using boost::system::error_code;
using tcp = asio::ip::tcp;

namespace {

using Endpoints = std::vector<tcp::endpoint>;

// Carries the bytes of a connection, with or without TLS.
class Stream {
 public:
  using OnReady = std::function<void(error_code)>;
  using OnBytes = std::function<void(error_code, size_t)>;
  virtual ~Stream() = default;
  virtual void connect(const Endpoints& endpoints, OnReady done) = 0;
  virtual void read_some(asio::mutable_buffer into, OnBytes done) = 0;
  virtual void write(asio::const_buffer from, OnBytes done) = 0;
  virtual void close() = 0;
};

class PlainStream : public Stream {
 public:
  explicit PlainStream(asio::io_context& io) : socket_(io) {}
  void connect(const Endpoints& endpoints, OnReady done) override {
    asio::async_connect(socket_, endpoints, [this, done](error_code error, const tcp::endpoint&) {
      error_code ignored;
      if (!error) socket_.set_option(tcp::no_delay(true), ignored);
      done(error);
    });
  }
  void read_some(asio::mutable_buffer into, OnBytes done) override {
    socket_.async_read_some(into, std::move(done));
  }
  void write(asio::const_buffer from, OnBytes done) override {
    asio::async_write(socket_, from, std::move(done));
  }
  void close() override {
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  tcp::socket socket_;
};

class TlsStream : public Stream {
 public:
  TlsStream(asio::io_context& io, asio::ssl::context& context, const std::string& host, bool verify)
      : stream_(io, context) {
    SSL_set_tlsext_host_name(stream_.native_handle(), host.c_str());
    if (verify) stream_.set_verify_callback(asio::ssl::host_name_verification(host));
  }
  void connect(const Endpoints& endpoints, OnReady done) override {
    asio::async_connect(stream_.next_layer(), endpoints,
                        [this, done](error_code error, const tcp::endpoint&) {
                          if (error) return done(error);
                          error_code ignored;
                          stream_.next_layer().set_option(tcp::no_delay(true), ignored);
                          stream_.async_handshake(asio::ssl::stream_base::client, done);
                        });
  }
  void read_some(asio::mutable_buffer into, OnBytes done) override {
    stream_.async_read_some(into, [done](error_code error, size_t count) {
      if (error == asio::ssl::error::stream_truncated) error = asio::error::eof;
      done(error, count);
    });
  }
  void write(asio::const_buffer from, OnBytes done) override {
    asio::async_write(stream_, from, std::move(done));
  }
  void close() override {
    error_code ignored;
    stream_.next_layer().close(ignored);
  }

 private:
  asio::ssl::stream<tcp::socket> stream_;
};

// Exchange is one request and the part of its answer that has arrived.
struct Exchange {
  Exchange(asio::io_context& io, std::string bytes_to_send, std::shared_ptr<HttpHandler> receiver)
      : bytes(std::move(bytes_to_send)), handler(std::move(receiver)), timer(io) {
    reset();
  }
  void reset() {
    parser.emplace([this](std::string_view body) {
      if (parser->is_event_stream() && parser->status() < 300) {
        events.feed(body);
      } else {
        reply.body += body;
      }
    });
  }

  std::string bytes;
  std::shared_ptr<HttpHandler> handler;
  asio::steady_timer timer;
  HttpReply reply;
  std::optional<HttpResponseParser> parser;
  SseParser events{[this](std::string_view data) { handler->on_event(data); }};
  bool over = false;
  bool tried_again = false;
};

struct Connection {
  std::unique_ptr<Stream> stream;
  std::shared_ptr<Exchange> exchange;  // null while the connection is idle
  std::array<char, 16384> buffer{};
  bool used = false;  // it has carried a whole exchange
};
using ConnectionPtr = std::shared_ptr<Connection>;

// Raises the limit of open files, because every connection needs a file descriptor and a load may open
// thousands.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 65536);
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

class Waiter : public HttpHandler {
 public:
  void on_event(std::string_view) override {}
  void on_done(HttpReply answer) override { reply = std::move(answer); }
  HttpReply reply;
};

}  // namespace

struct HttpClient::Impl {
  HttpUrl url;
  HttpClientOptions options;
  asio::io_context io{1};
  std::optional<asio::ssl::context> tls;
  Endpoints endpoints;
  std::vector<ConnectionPtr> idle;
  std::unordered_set<ConnectionPtr> busy;
  std::unordered_set<std::shared_ptr<asio::steady_timer>> timers;
  int64_t num_opened = 0;

  std::string render(const HttpRequest& request) const {
    const bool v6 = url.host.find(':') != std::string::npos;
    std::string out = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}{}{}:{}\r\n", request.method, url.prefix,
                                  request.target, v6 ? "[" : "", url.host, v6 ? "]" : "", url.port);
    out += "Accept: */*\r\nUser-Agent: hadal\r\n";
    if (!options.bearer.empty()) out += fmt::format("Authorization: Bearer {}\r\n", options.bearer);
    if (!request.body.empty()) out += "Content-Type: application/json\r\n";
    if (!request.body.empty() || request.method != "GET") {
      out += fmt::format("Content-Length: {}\r\n", request.body.size());
    }
    return out + "\r\n" + request.body;
  }

  void begin(const std::shared_ptr<Exchange>& exchange, bool on_new_connection) {
    if (!on_new_connection && !idle.empty()) {
      const ConnectionPtr connection = std::move(idle.back());
      idle.pop_back();
      connection->exchange = exchange;
      busy.insert(connection);
      return send(connection);
    }
    auto connection = std::make_shared<Connection>();
    ++num_opened;
    if (tls) {
      connection->stream = std::make_unique<TlsStream>(io, *tls, url.host, options.verify_certificate);
    } else {
      connection->stream = std::make_unique<PlainStream>(io);
    }
    connection->exchange = exchange;
    busy.insert(connection);
    connection->stream->connect(endpoints, [this, connection](error_code error) {
      if (error) {
        return fail(connection,
                    fmt::format("cannot connect to {}:{}: {}", url.host, url.port, error.message()));
      }
      send(connection);
    });
  }

  void send(const ConnectionPtr& connection) {
    const std::string& bytes = connection->exchange->bytes;
    // A failed write is ignored here, because there may still be an answer that says why the server did not
    // read everything.
    connection->stream->write(asio::buffer(bytes),
                              [this, connection](error_code, size_t) { read(connection); });
  }

  void read(const ConnectionPtr& connection) {
    connection->stream->read_some(
        asio::buffer(connection->buffer),
        [this, connection](error_code error, size_t count) { on_read(connection, error, count); });
  }

  void on_read(const ConnectionPtr& connection, error_code error, size_t count) {
    const std::shared_ptr<Exchange> exchange = connection->exchange;
    if (!exchange || exchange->over) return;
    HttpResponseParser& parser = *exchange->parser;
    if (error == asio::error::eof) {
      const Result<void> finished = parser.finish();
      if (!finished.ok()) return fail(connection, finished.status().message);
      return complete(connection, false);
    }
    if (error) return fail(connection, error.message());
    const Result<size_t> taken = parser.feed({connection->buffer.data(), count});
    if (!taken.ok()) return fail(connection, taken.status().message);
    if (exchange->over) return;  // a handler ended everything
    if (!parser.done()) return read(connection);
    complete(connection, parser.keep_alive() && *taken == count);
  }

  void complete(const ConnectionPtr& connection, bool keep) {
    const std::shared_ptr<Exchange> exchange = std::move(connection->exchange);
    busy.erase(connection);
    connection->exchange = nullptr;
    connection->used = true;
    if (keep && idle.size() < static_cast<size_t>(options.max_idle_connections)) {
      idle.push_back(connection);
    } else {
      connection->stream->close();
    }
    exchange->reply.status = exchange->parser->status();
    finish(*exchange);
  }

  void fail(const ConnectionPtr& connection, std::string why) {
    const std::shared_ptr<Exchange> exchange = std::move(connection->exchange);
    connection->exchange = nullptr;
    connection->stream->close();
    busy.erase(connection);
    if (!exchange || exchange->over) return;
    // The server may have closed a reused connection while it was idle, so the request is sent once more.
    if (connection->used && !exchange->parser->started() && !exchange->tried_again) {
      exchange->tried_again = true;
      exchange->reset();
      return begin(exchange, true);
    }
    exchange->reply.status = exchange->parser->status();
    exchange->reply.error = std::move(why);
    finish(*exchange);
  }

  static void finish(Exchange& exchange) {
    exchange.over = true;
    exchange.timer.cancel();
    exchange.handler->on_done(std::move(exchange.reply));
  }

  void watch(const std::shared_ptr<Exchange>& exchange) {
    exchange->timer.expires_after(std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double>(std::min(options.timeout_s, 1e9))));
    exchange->timer.async_wait([this, exchange](error_code error) {
      if (error || exchange->over) return;
      for (const ConnectionPtr& connection : busy) {
        if (connection->exchange != exchange) continue;
        const ConnectionPtr late = connection;
        late->used = false;  // no second try
        return fail(late, fmt::format("no complete answer within {:g} s", options.timeout_s));
      }
    });
  }

  void drop_everything() {
    for (const ConnectionPtr& connection : std::exchange(busy, {})) {
      if (connection->exchange) {
        connection->exchange->over = true;
        connection->exchange->timer.cancel();
      }
      connection->exchange = nullptr;
      connection->stream->close();
    }
    for (const auto& timer : std::exchange(timers, {})) timer->cancel();
    io.restart();
    io.run();  // lets the cancelled operations end
  }
};

HttpClient::HttpClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpClient::~HttpClient() = default;

Result<std::unique_ptr<HttpClient>> HttpClient::create(const HttpUrl& url, const HttpClientOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->url = url;
  impl->options = options;
  error_code error;
  tcp::resolver resolver(impl->io);
  const auto found = resolver.resolve(url.host, std::to_string(url.port), error);
  if (error) return not_found("cannot resolve the host {}: {}", url.host, error.message());
  for (const auto& entry : found) impl->endpoints.push_back(entry.endpoint());
  if (url.tls) {
    impl->tls.emplace(asio::ssl::context::tls_client);
    impl->tls->set_verify_mode(options.verify_certificate ? asio::ssl::verify_peer : asio::ssl::verify_none);
    if (options.verify_certificate) impl->tls->set_default_verify_paths(error);
    if (error)
      return unsupported("TLS: there are no certificates to check the server's certificate with: {}",
                         error.message());
  }
  raise_file_limit();
  return std::unique_ptr<HttpClient>(new HttpClient(std::move(impl)));
}

void HttpClient::start(HttpRequest request, std::shared_ptr<HttpHandler> handler) {
  auto exchange = std::make_shared<Exchange>(impl_->io, impl_->render(request), std::move(handler));
  impl_->watch(exchange);
  impl_->begin(exchange, false);
}

void HttpClient::call_after(std::chrono::nanoseconds delay, std::function<void()> action) {
  auto timer = std::make_shared<asio::steady_timer>(impl_->io, delay);
  impl_->timers.insert(timer);
  timer->async_wait([impl = impl_.get(), timer, action = std::move(action)](error_code error) {
    impl->timers.erase(timer);
    if (!error) action();
  });
}

bool HttpClient::run(const std::function<bool()>& stop) {
  impl_->io.restart();
  while (true) {
    impl_->io.run_for(std::chrono::milliseconds(100));
    if (impl_->io.stopped()) return true;
    if (stop && stop()) {
      impl_->drop_everything();
      return false;
    }
  }
}

HttpReply HttpClient::fetch(HttpRequest request) {
  auto waiter = std::make_shared<Waiter>();
  start(std::move(request), waiter);
  run(nullptr);
  return std::move(waiter->reply);
}

int64_t HttpClient::num_connections_opened() const {
  return impl_->num_opened;
}

std::string describe_failure(const HttpReply& reply) {
  if (!reply.error.empty()) return reply.error;
  error_code error;
  const boost::json::value parsed = boost::json::parse(reply.body, error);
  const boost::json::object* object = error ? nullptr : parsed.if_object();
  if (object != nullptr && object->if_contains("error") != nullptr) {
    if (const auto* inner = object->at("error").if_object()) object = inner;
  }
  std::string message = reply.body.substr(0, 200);
  if (object != nullptr) {
    const boost::json::value* text = object->if_contains("message");
    if (text != nullptr && text->is_string()) message = text->as_string().c_str();
  }
  return fmt::format("status {}{}{}", reply.status, message.empty() ? "" : ": ", message);
}

}  // namespace hadal::client
