// Listens, accepts, starts and stops. The code for sockets of connections is in http_connection*.cpp.
#include "server/http/http_server.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <future>
#include <limits>
#include <new>
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
#include "base/memory_reserve.h"
#include "server/http/connection_limits.h"
#include "server/http/http_connection.h"
#include "server/http/http_io_thread.h"

namespace hadal::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = HttpIoThread::Clock;

constexpr int kBacklog = 4096;
constexpr int kAcceptBurst = 64;  // after this many the thread's connections are served
constexpr std::chrono::milliseconds kAcceptBackOff{100};

// Descriptor owns a descriptor on its way to its thread, and closes it if it never arrives.
struct Descriptor {
  explicit Descriptor(int value) : fd(value) {}
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd;
};

// Arrival is a connection on its way from the accepting thread to its I/O thread. It holds its place among
// the server's connections from the moment it is accepted.
struct Arrival {
  Arrival(int fd, std::shared_ptr<HttpTransport> to) : descriptor(fd), transport(std::move(to)) {
    transport->num_places.fetch_add(1, std::memory_order_relaxed);
  }
  ~Arrival() {
    if (!is_added) transport->num_places.fetch_sub(1, std::memory_order_relaxed);
  }
  Arrival(const Arrival&) = delete;
  Arrival& operator=(const Arrival&) = delete;
  Descriptor descriptor;
  const std::shared_ptr<HttpTransport> transport;
  bool is_added = false;  // if true, HttpIoThread::remove gives the place back
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

// Returns the name of the client to whom a peer's connections are accounted. For IPv6 the client is a /64
// network, because a host may choose any address of its network.
std::string client_of(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return fmt::format("peer:{}", text);
  }
  in6_addr v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&v6)) {
    ::inet_ntop(AF_INET, &v6.s6_addr[12], text, sizeof(text));
    return fmt::format("peer:{}", text);
  }
  std::fill(v6.s6_addr + 8, v6.s6_addr + 16, uint8_t{0});
  ::inet_ntop(AF_INET6, &v6, text, sizeof(text));
  return fmt::format("peer:{}/64", text);
}

// Raises this process's descriptor limit to its hard limit, and returns it.
int64_t raise_descriptor_limit() {
  constexpr auto kNone = std::numeric_limits<int64_t>::max();
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kNone;
  if (limit.rlim_cur < limit.rlim_max) {
    const rlim_t before = std::exchange(limit.rlim_cur, limit.rlim_max);
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
  }
  return limit.rlim_cur == RLIM_INFINITY ? kNone : static_cast<int64_t>(limit.rlim_cur);
}

int64_t open_descriptors() {
  std::error_code error;
  int64_t count = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end;
       it.increment(error))
    ++count;
  return count;
}

// Listener is one listening socket and the coroutine that accepts connections from it, on one I/O thread.
struct Listener {
  explicit Listener(asio::io_context& context) : acceptor(context), timer(context) {}
  tcp::acceptor acceptor;
  asio::steady_timer timer;
};

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(HttpServerOptions options, HttpHandler handler)
      : transport_(std::make_shared<HttpTransport>(std::move(options), std::move(handler))) {}
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
    descriptor_limit_ = raise_descriptor_limit();
    for (int i = 0; i < options.num_threads; ++i)
      threads_.push_back(std::make_shared<HttpIoThread>(i, transport_));
    HADAL_RETURN_IF_ERROR(listen());
    const int64_t open = open_descriptors();  // with those of the threads and listeners
    connection_bytes_ = kConnectionBytes + (tls_ ? kTlsBytes : 0);
    const size_t share = share_of_strangers(*transport_->memory());
    connections_ = fit_connections(options.limits, descriptor_limit_, open,
                                   static_cast<int64_t>(share / connection_bytes_));
    if (connections_.bound != ConnectionLimits::Bound::kLimits) {
      const int most = options.limits.max_connections;
      const std::string what =
          is_bound_by_memory() ? fmt::format("--max-request-memory to {} MiB",
                                             ((static_cast<size_t>(most) * connection_bytes_ * 8) >> 20) + 1)
                               : fmt::format("ulimit -n to {}", descriptors_for(most, open));
      log_warning(
          "http_connections_lowered connections={} of_one_address={} descriptors={} memory={} "
          "note=\"raise {} for {} connections\"",
          connections_.all, std::min(connections_.of_peer, connections_.all), descriptor_limit_, share, what,
          most);
    }
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
  HttpLedger& ledger() override { return *transport_->ledger; }
  const AnswerCounts& answers() const override { return transport_->answers; }
  double longest_task_seconds(int thread) const override {
    return threads_.at(static_cast<size_t>(thread))->longest_task_seconds();
  }

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
      try {
        co_await listener->acceptor.async_wait(tcp::acceptor::wait_read, token);
        if (!listener->acceptor.is_open()) break;
        if (accept_burst(listener->acceptor.native_handle())) continue;
        listener->timer.expires_after(kAcceptBackOff);
        co_await listener->timer.async_wait(token);
      } catch (const std::bad_alloc&) {
        // A connection was lost for lack of memory; the next connection is tried.
      }
    }
  }

  // Returns false if descriptors or memory have run out; the caller then tries again later.
  bool accept_burst(int listening) {
    for (int i = 0; i < kAcceptBurst; ++i) {
      sockaddr_storage address{};
      socklen_t length = sizeof(address);
      const int fd =
          ::accept4(listening, reinterpret_cast<sockaddr*>(&address), &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd >= 0) {
        Descriptor owned(fd);
        const MemoryReserve::Pause own;  // a connection's memory is that of its client
        hand_over(owned, describe(address, length), client_of(address));
        continue;
      }
      if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        complain("http_accept_failed", std::system_category().message(errno));
        make_room();
        return false;
      }
      // After any other error (ECONNABORTED, EINTR, a network error of one client) the next connection is
      // accepted.
    }
    return true;
  }

  void hand_over(Descriptor& owned, std::string peer, const std::string& client) {
    const int64_t connections = transport_->num_places.load(std::memory_order_relaxed);
    const auto arrival = std::make_shared<Arrival>(-1, transport_);
    const int fd = arrival->descriptor.fd = std::exchange(owned.fd, -1);
    const auto account = transport_->ledger->account(client);
    const int of_peer = account->connections.load(std::memory_order_relaxed);
    std::optional<Refusal> refuse;
    if (of_peer >= connections_.of_peer) refuse = Refusal::kPeerConnections;
    // The kernel gives the lowest number that is free, so at least as many descriptors are in use.
    const int64_t left = descriptor_limit_ - fd;
    const int64_t reserved = connections_.reserved_descriptors;
    const bool full = connections >= connections_.all || left <= reserved;
    if (!refuse && full && !make_room()) {
      const bool lacks_memory = is_bound_by_memory() && connections >= connections_.all;
      refuse = lacks_memory ? Refusal::kMemory : Refusal::kConnections;
    }
    if (refuse) {
      complain("http_too_many_connections", fmt::format("limit={} limit_of_peer={} last_peer={}",
                                                        connections_.all, connections_.of_peer, peer));
    }
    if (refuse == Refusal::kMemory) transport_->memory()->count_refusal(MemoryKind::kConnection);
    // A connection that gets a 503 also takes a descriptor for a moment, so beyond a margin it is closed
    // without an answer. The margin is wider for a connection that replaces an idle one, which may not be
    // closed yet. It is narrower where memory is short.
    const int64_t widest = is_bound_by_memory() ? std::max<int64_t>(connections_.all / 4, 1) : reserved;
    const int64_t margin = std::min(refuse ? reserved / 2 : reserved * 3 / 4, widest);
    if (connections >= connections_.all + margin || left <= reserved - margin ||
        of_peer >= connections_.of_peer + connections_.refused_of_peer) {
      return transport_->ledger->count(refuse.value_or(Refusal::kConnections));
    }
    MemoryCharge charge(transport_->memory());
    charge.set(MemoryKind::kConnection, connection_bytes_);
    const auto thread = threads_[next_thread_++ % threads_.size()];
    auto other =
        std::make_shared<HttpPeer>(HttpPeer{std::move(peer), ConnectionSlot(account), std::move(charge)});
    asio::post(thread->context(), [this, thread, arrival, other, refuse] {
      if (thread->stopped() || thread->draining()) return;
      const int taken = std::exchange(arrival->descriptor.fd, -1);
      const auto connection = tls_ ? make_tls_connection(thread, taken, std::move(*other), refuse, tls_)
                                   : make_plain_connection(thread, taken, std::move(*other), refuse);
      thread->add(connection);
      arrival->is_added = true;
      connection->start();
    });
  }

  // Asks the thread of the connection that has been idle for longest to close it; returns false if none has
  // been idle for long enough.
  bool make_room() {
    HttpIoThread* idlest = nullptr;
    auto since = Clock::time_point::max();
    for (const auto& thread : threads_) {
      if (thread->idlest_since() >= since) continue;
      since = thread->idlest_since();
      idlest = thread.get();
    }
    const std::chrono::milliseconds min_idle = transport_->options.limits.min_idle;
    if (idlest == nullptr || Clock::now() - since < min_idle) return false;
    complain("http_idle_connection_closed",
             fmt::format("connections={} limit={} descriptors={}", transport_->num_connections.load(),
                         connections_.all, descriptor_limit_));
    idlest->cut_idlest(min_idle);
    return true;
  }

  bool is_bound_by_memory() const { return connections_.bound == ConnectionLimits::Bound::kMemory; }

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
  int64_t descriptor_limit_ = 0;
  ConnectionLimits connections_;
  size_t connection_bytes_ = 0;  // of each, as the memory is counted
  bool started_ = false;
  bool stopped_ = false;
  size_t next_thread_ = 0;
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
