// Measures token streams through the transport alone: `streams` chunked answers over loopback, one write per
// stream and round, like an engine step's; the client reads all of them with epoll in this process. The
// counters are tokens_per_s end to end (including the client), and the received bytes per token.
#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/http/http_server.h"

namespace hadal::server {
namespace {

// Has the form of one streamed token of /v1/completions.
constexpr std::string_view kEvent =
    "data: {\"id\":\"cmpl-0123456789abcdef\",\"object\":\"text_completion\",\"created\":1700000000,"
    "\"model\":\"hadal-tiny\",\"choices\":[{\"index\":0,\"text\":\" token\",\"logprobs\":null,"
    "\"finish_reason\":null}]}\n\n";

class Client {
 public:
  Client(uint16_t port, int num_streams) : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const std::string_view request = "GET /stream HTTP/1.1\r\nHost: bench\r\n\r\n";
    for (int i = 0; i < num_streams; ++i) {
      const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (fd < 0 || ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
          ::send(fd, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size()))
        throw std::runtime_error(std::string("the client cannot connect: ") + std::strerror(errno));
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.fd = fd;
      ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
      fds_.push_back(fd);
    }
  }
  ~Client() {
    for (const int fd : fds_) ::close(fd);
    ::close(epoll_);
  }

  // Reads until `bytes` have arrived over all streams together.
  void read(int64_t bytes) {
    for (; bytes > 0;) {
      const int ready = ::epoll_wait(epoll_, events_.data(), static_cast<int>(events_.size()), 10'000);
      if (ready <= 0) throw std::runtime_error("no stream advanced for ten seconds");
      for (int i = 0; i < ready; ++i) {
        const ssize_t n = ::recv(events_[static_cast<size_t>(i)].data.fd, buffer_.data(), buffer_.size(), 0);
        if (n <= 0) throw std::runtime_error("a stream broke");
        bytes -= n;
      }
    }
    if (bytes < 0) throw std::runtime_error("more bytes arrived than were sent");
  }
  // Reads one answer's head from every stream.
  void read_heads() {
    for (const int fd : fds_) {
      ssize_t n = ::recv(fd, buffer_.data(), buffer_.size(), 0);
      if (n <= 0 || !std::string_view(buffer_.data(), static_cast<size_t>(n)).ends_with("\r\n\r\n"))
        throw std::runtime_error("a stream did not begin with a head");
    }
  }

 private:
  int epoll_;
  std::vector<int> fds_;
  std::vector<char> buffer_ = std::vector<char>(64 << 10);
  std::vector<epoll_event> events_ = std::vector<epoll_event>(256);
};

void BM_TokenStreams(benchmark::State& state) {
  const int num_streams = static_cast<int>(state.range(0));
  const int num_tokens = static_cast<int>(state.range(1));
  const int num_threads = static_cast<int>(state.range(2));
  const bool lock_step = state.range(3) != 0;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);

  // The index is that of the I/O thread; each thread uses only its own entry.
  std::vector<std::vector<std::shared_ptr<HttpExchange>>> threads(static_cast<size_t>(num_threads));
  std::atomic<int> num_open{0};
  HttpServerOptions options;
  options.port = 0;
  options.num_threads = num_threads;
  options.access_log = false;
  auto server = HttpServer::start(options, [&](const std::shared_ptr<HttpExchange>& exchange) {
    HttpResponse head;
    head.content_type = "text/event-stream";
    exchange->start_stream(std::move(head));
    threads[static_cast<size_t>(exchange->io().index())].push_back(exchange);
    num_open.fetch_add(1);
  });
  if (!server.ok()) return state.SkipWithError(server.status().message.c_str());

  // One task runs per thread and step. Without lock-step each task posts the next one.
  const std::function<void(size_t, int)> step = [&](size_t index, int left) {
    for (const auto& exchange : threads[index]) {
      exchange->write(kEvent);
      if (left == 1) exchange->finish();
    }
    if (left == 1) return threads[index].clear();
    if (!lock_step)
      (*server)->io_thread(static_cast<int>(index)).post([&step, index, left] { step(index, left - 1); });
  };
  const int64_t token_bytes =
      static_cast<int64_t>(fmt::format("{:x}\r\n", kEvent.size()).size() + kEvent.size() + 2);
  const int64_t step_bytes = token_bytes * num_streams;
  const int64_t end_bytes = int64_t{5} * num_streams;  // "0\r\n\r\n"
  for (auto _ : state) {
    state.PauseTiming();
    num_open = 0;
    Client client((*server)->port(), num_streams);
    while (num_open.load() < num_streams) std::this_thread::yield();
    client.read_heads();
    state.ResumeTiming();
    for (int left = num_tokens; left > 0; --left) {
      for (size_t t = 0; t < threads.size(); ++t)
        (*server)->io_thread(static_cast<int>(t)).post([&step, t, left] { step(t, left); });
      if (!lock_step) break;
      client.read(step_bytes + (left == 1 ? end_bytes : 0));
    }
    if (!lock_step) client.read(step_bytes * num_tokens + end_bytes);
  }
  const double tokens = static_cast<double>(state.iterations()) * num_streams * num_tokens;
  state.counters["tokens_per_s"] = benchmark::Counter(tokens, benchmark::Counter::kIsRate);
  state.counters["bytes_per_token"] = static_cast<double>(token_bytes);
}
BENCHMARK(BM_TokenStreams)
    ->ArgNames({"streams", "tokens", "threads", "lock_step"})
    ->Args({1, 2000, 1, 1})
    ->Args({64, 1000, 1, 1})
    ->Args({1024, 200, 1, 1})
    ->Args({1024, 200, 2, 1})
    ->Args({1024, 200, 2, 0})
    ->Args({4096, 50, 2, 1})
    ->Unit(benchmark::kMillisecond)
    ->MeasureProcessCPUTime()
    ->UseRealTime();

// Measures the cost of one answer: small requests on kept-alive connections, one in flight on each.
void BM_KeepAliveRequests(benchmark::State& state) {
  HttpServerOptions options;
  options.port = 0;
  options.access_log = false;
  auto server = HttpServer::start(options, [](const std::shared_ptr<HttpExchange>& exchange) {
    HttpResponse response;
    response.body = "{}";
    exchange->respond(std::move(response));
  });
  if (!server.ok()) return state.SkipWithError(server.status().message.c_str());
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons((*server)->port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return state.SkipWithError("the client cannot connect");
  const std::string_view request = "GET / HTTP/1.1\r\nHost: bench\r\n\r\n";
  char buffer[4096];
  for (auto _ : state) {
    if (::send(fd, request.data(), request.size(), MSG_NOSIGNAL) < 0 ||
        ::recv(fd, buffer, sizeof(buffer), 0) <= 0)
      return state.SkipWithError("the connection broke");
  }
  ::close(fd);
}
BENCHMARK(BM_KeepAliveRequests)->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace
}  // namespace hadal::server

BENCHMARK_MAIN();
