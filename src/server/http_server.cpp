// Listening, accepting, starting and stopping. The code for sockets of connections is in
// http_connection*.cpp.
#include "server/http_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <system_error>
#include <utility>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/check.h"
#include "base/log.h"
#include "server/http_connection.h"
#include "server/http_io_thread.h"

namespace hadal::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = HttpIoThread::Clock;

constexpr int kBacklog = 4096;
constexpr int kAcceptBurst = 64;  // after this many the thread's connections are served
constexpr std::chrono::milliseconds kAcceptBackOff{100};

// A descriptor on its way to its thread, which is closed if it never arrives.
struct Descriptor {
  explicit Descriptor(int value) : fd(value) {}
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd;
};

std::string describe(const sockaddr_storage& address, socklen_t length) {
  char host[NI_MAXHOST] = "?";
  char port[NI_MAXSERV] = "?";
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof(host), port, sizeof(port),
                NI_NUMERICHOST | NI_NUMERICSERV);
  std::string_view name(host);
  if (name.starts_with("::ffff:")) name.remove_prefix(7);
  return address.ss_family == AF_INET6 && name.find(':') != name.npos ? fmt::format("[{}]:{}", name, port)
                                                                      : fmt::format("{}:{}", name, port);
}

void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// One listening socket and the coroutine that accepts connections from it, on one I/O thread.
struct Listener {
  explicit Listener(asio::io_context& context) : acceptor(context), timer(context) {}
  tcp::acceptor acceptor;
  asio::steady_timer timer;
};

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(HttpServerOptions options, HttpHandler handler)
      : transport_(std::make_shared<HttpTransport>()) {
    transport_->options = std::move(options);
    transport_->handler = std::move(handler);
  }
  ~HttpServerImpl() override { stop(); }

  Result<void> start() {
    const HttpServerOptions& options = transport_->options;
    if (options.num_threads < 1)
      return invalid_argument("num_threads is {}: at least 1 I/O thread is needed", options.num_threads);
    if (!options.tls_keyfile.empty() || !options.tls_certfile.empty()) {
      HADAL_ASSIGN_OR_RETURN(tls_, load_tls(options));
    }
    // If a client (or a reader of the log) goes away, that must be an error code and not a signal.
    ::signal(SIGPIPE, SIG_IGN);
    raise_descriptor_limit();
    for (int i = 0; i < options.num_threads; ++i)
      threads_.push_back(std::make_shared<HttpIoThread>(i, transport_));
    HADAL_RETURN_IF_ERROR(listen());
    for (const auto& listener : listeners_)
      asio::co_spawn(threads_[0]->context(), accept_loop(listener), asio::detached);
    for (const auto& thread : threads_) thread->start();
    started_ = true;
    return {};
  }

  uint16_t port() const override { return port_; }
  int num_threads() const override { return static_cast<int>(threads_.size()); }
  IoThread& io_thread(int index) override { return *threads_.at(static_cast<size_t>(index)); }
  int64_t num_connections() const override { return transport_->num_connections.load(); }

  void stop_accepting() override {
    if (stopped_) return;
    close_listeners();
    for (const auto& thread : threads_) thread->drain_connections();
  }

  void stop() override {
    if (std::exchange(stopped_, true)) return;
    for (const auto& thread : threads_)
      HADAL_CHECK(!thread->is_current(), "HttpServer::stop on an I/O thread would wait for itself");
    close_listeners();
    for (const auto& thread : threads_) thread->request_stop();
    for (const auto& thread : threads_) thread->join();
  }

 private:
  Result<void> listen() {
    const HttpServerOptions& options = transport_->options;
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    const std::string service = std::to_string(options.port);
    const char* const host = options.host.empty() ? nullptr : options.host.c_str();
    if (const int error = ::getaddrinfo(host, service.c_str(), &hints, &found); error != 0)
      return invalid_argument("host '{}' cannot be resolved: {}", options.host, ::gai_strerror(error));
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
    port_ = options.port;
    Result<void> first_error;
    for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
      tcp::endpoint endpoint;
      if (info->ai_addrlen > endpoint.capacity()) continue;
      endpoint.resize(info->ai_addrlen);
      std::memcpy(endpoint.data(), info->ai_addr, info->ai_addrlen);
      endpoint.port(port_);
      // A name may have several addresses; those that this machine lacks (often ::1) are left out.
      if (auto result = listen_at(endpoint); !result.ok() && first_error.ok()) first_error = result;
    }
    if (listeners_.empty()) return first_error;
    if (!first_error.ok()) log_warning("http_listen_partly {}", first_error.status().message);
    return {};
  }

  Result<void> listen_at(const tcp::endpoint& endpoint) {
    auto listener = std::make_shared<Listener>(threads_[0]->context());
    tcp::acceptor& acceptor = listener->acceptor;
    error_code ec;
    acceptor.open(endpoint.protocol(), ec);
    // The port can be used at once after the last server here was killed: its connections may still be in
    // TIME_WAIT.
    if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
    if (!ec && endpoint.protocol() == tcp::v6()) {
      const bool any = endpoint.address().is_unspecified();
      acceptor.set_option(asio::ip::v6_only(!any), ec);
      ec.clear();
    }
    if (!ec) acceptor.bind(endpoint, ec);
    if (!ec) acceptor.listen(kBacklog, ec);
    if (!ec) acceptor.non_blocking(true, ec);
    const std::string where =
        fmt::format("{}:{}",
                    endpoint.address().is_v6() ? fmt::format("[{}]", endpoint.address().to_string())
                                               : endpoint.address().to_string(),
                    endpoint.port());
    if (ec == asio::error::address_in_use)
      return make_status(StatusCode::kResourceExhausted, "port {} is in use: cannot listen at {}",
                         endpoint.port(), where);
    if (ec) return invalid_argument("cannot listen at {}: {}", where, ec.message());
    port_ = acceptor.local_endpoint(ec).port();
    listeners_.push_back(std::move(listener));
    return {};
  }

  // When this returns, nothing listens any more.
  void close_listeners() {
    if (listeners_.empty()) return;
    const auto close = [listeners = std::exchange(listeners_, {})] {
      for (const auto& listener : listeners) {
        error_code ignored;
        listener->acceptor.close(ignored);
        listener->timer.cancel();
      }
    };
    if (!started_ || threads_[0]->is_current()) return close();
    std::promise<void> closed;
    asio::post(threads_[0]->context(), [&] {
      close();
      closed.set_value();
    });
    closed.get_future().wait();
  }

  asio::awaitable<void> accept_loop(std::shared_ptr<Listener> listener) {
    error_code ec;
    auto token = asio::redirect_error(asio::use_awaitable, ec);
    while (listener->acceptor.is_open()) {
      co_await listener->acceptor.async_wait(tcp::acceptor::wait_read, token);
      if (!listener->acceptor.is_open()) break;
      if (accept_burst(listener->acceptor.native_handle())) continue;
      listener->timer.expires_after(kAcceptBackOff);
      co_await listener->timer.async_wait(token);
    }
  }

  // Returns false if descriptors or memory have run out, so that it is tried again later.
  bool accept_burst(int listening) {
    for (int i = 0; i < kAcceptBurst; ++i) {
      sockaddr_storage address{};
      socklen_t length = sizeof(address);
      const int fd =
          ::accept4(listening, reinterpret_cast<sockaddr*>(&address), &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd >= 0) {
        hand_over(fd, describe(address, length));
        continue;
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        complain("http_accept_failed", std::system_category().message(errno));
        return false;
      }
      // After any other error (ECONNABORTED, EINTR, a network error of one client) the next connection is
      // accepted.
    }
    return true;
  }

  void hand_over(int fd, std::string peer) {
    const int64_t connections =
        transport_->num_connections.load(std::memory_order_relaxed) + in_transit_.load();
    const int limit = transport_->options.limits.max_connections;
    const bool refuse = connections >= limit;
    auto descriptor = std::make_shared<Descriptor>(fd);
    if (refuse) complain("http_too_many_connections", fmt::format("limit={}", limit));
    // Connections that get a 503 also cost a descriptor for a moment, so beyond a margin they are just
    // closed.
    if (connections >= int64_t{limit} + 1024) return;
    const auto thread = threads_[next_thread_++ % threads_.size()];
    in_transit_.fetch_add(1);
    asio::post(thread->context(), [this, thread, descriptor, peer = std::move(peer), refuse]() mutable {
      in_transit_.fetch_sub(1);
      if (thread->stopped() || thread->draining()) return;
      const int taken = std::exchange(descriptor->fd, -1);
      const auto connection = tls_ ? make_tls_connection(thread, taken, std::move(peer), refuse, tls_)
                                   : make_plain_connection(thread, taken, std::move(peer), refuse);
      thread->add(connection);
      connection->start();
    });
  }

  void complain(std::string_view event, std::string_view detail) {  // on thread 0
    const auto now = Clock::now();
    ++num_complaints_;
    if (now - complained_at_ < std::chrono::seconds(1)) return;
    complained_at_ = now;
    log_warning("{} count={} {}", event, std::exchange(num_complaints_, 0), detail);
  }

  const std::shared_ptr<HttpTransport> transport_;
  std::shared_ptr<TlsContext> tls_;
  std::vector<std::shared_ptr<HttpIoThread>> threads_;
  std::vector<std::shared_ptr<Listener>> listeners_;  // on thread 0
  uint16_t port_ = 0;
  bool started_ = false;
  bool stopped_ = false;
  size_t next_thread_ = 0;
  std::atomic<int> in_transit_{0};
  Clock::time_point complained_at_{};
  int num_complaints_ = 0;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerOptions options, HttpHandler handler) {
  HADAL_CHECK(handler != nullptr, "HttpServer::start needs a handler");
  auto server = std::make_unique<HttpServerImpl>(std::move(options), std::move(handler));
  HADAL_RETURN_IF_ERROR(server->start());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace hadal::server
