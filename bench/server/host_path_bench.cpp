// Measures the whole host path: HTTP, routes, JSON, tokenising, scheduling, the engine's loop, detokenising
// and events on loopback sockets. Only the model is replaced. The replacement chooses words of the bundled
// model's vocabulary at once or, with step_ms, after sleeping for a step's time, during which the host is
// idle as it is with a device. The client is a forked process that reads every stream with one epoll and
// counts, without parsing JSON.
//
// The counters are tokens_per_s, from the first request sent to the last stream's end; events_per_token,
// which is one per token and the few that begin and end a stream; itl_*_ms, the time between two events of a
// stream at its reader; server_us and client_us, the processor time per token of each process; and
// ttft_p50_ms.
#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/log.h"
#include "engine/step_executor.h"
#include "server/server.h"
#include "tests/source_dir.h"
#include "text/tokenizer/tokenizer.h"

namespace hadal::server {
namespace {

using Clock = std::chrono::steady_clock;

double process_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// ---- the replacement of the model ----------------------------------------------------------------------

class StandInExecutor final : public StepExecutor {
 public:
  StandInExecutor(std::vector<int32_t> words, std::chrono::milliseconds step)
      : words_(std::move(words)), step_(step) {}

  void launch(StagedStep step) override {
    free_at_ = std::max(free_at_, Clock::now()) + step_;
    steps_.push_back({std::move(step), free_at_});
  }
  void set_masks(int64_t, std::vector<uint32_t>) override {}
  StepOutput wait() override {
    const UnderWay in_flight = std::move(steps_.front());
    steps_.pop_front();
    if (step_.count() != 0) std::this_thread::sleep_until(in_flight.ready_at);
    StepOutput output;
    output.step = in_flight.step.step;
    output.samples.reserve(in_flight.step.samples.size());
    for (const SampleSpec& spec : in_flight.step.samples) {
      const auto at = static_cast<size_t>(spec.position + spec.slot * 7);
      output.samples.push_back({.slot = spec.slot, .token = words_[at % words_.size()]});
    }
    return output;
  }

 private:
  struct UnderWay {
    StagedStep step;
    Clock::time_point ready_at;
  };
  const std::vector<int32_t> words_;
  const std::chrono::milliseconds step_;
  Clock::time_point free_at_{};
  std::deque<UnderWay> steps_;
};

// Returns the tokens that are whole characters of printable ASCII.
std::vector<int32_t> words_of(const Tokenizer& tokenizer) {
  std::vector<int32_t> words;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    const bool plain = !bytes.empty() &&
                       std::all_of(bytes.begin(), bytes.end(), [](char c) { return c >= ' ' && c <= '~'; });
    if (plain && !tokenizer.is_special(id)) words.push_back(id);
  }
  return words;
}

// ---- the client ----------------------------------------------------------------------------------------

struct ClientReport {  // in memory shared with the parent
  bool ok = false;
  char why[128] = {};
  int64_t events = 0;
  double seconds = 0.0;
  double cpu_seconds = 0.0;
  double itl_mean_ms = 0.0, itl_p50_ms = 0.0, itl_p99_ms = 0.0;
  double ttft_p50_ms = 0.0;
};

double percentile(std::vector<float>& values, double p) {
  if (values.empty()) return 0.0;
  const auto at = static_cast<size_t>(p * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return static_cast<double>(values[at]);
}

// Splits a chunked answer into its chunks without parsing them; the server sends one event per chunk.
class ChunkCounter {
 public:
  // Reads data and returns how many chunks ended in it.
  int feed(std::string_view data) {
    int ended = 0;
    if (!head_done_) {
      head_ += data;
      const size_t end = head_.find("\r\n\r\n");
      if (end == std::string::npos) return 0;
      if (head_.compare(0, 12, "HTTP/1.1 200") != 0) throw std::runtime_error(head_.substr(0, 100));
      head_done_ = true;
      const std::string rest = head_.substr(end + 4);
      std::string().swap(head_);
      return feed(rest);
    }
    while (!data.empty() && !done_) {
      if (skip_ > 0) {
        const size_t n = std::min(skip_, data.size());
        data.remove_prefix(n);
        skip_ -= n;
        if (skip_ == 0) ++ended;
        continue;
      }
      const char c = data.front();
      data.remove_prefix(1);
      if (c == '\n') {
        done_ = size_ == 0;
        skip_ = size_ + 2;
        size_ = 0;
      } else if (c != '\r') {
        size_ = size_ * 16 + static_cast<size_t>(c <= '9' ? c - '0' : c - 'a' + 10);
      }
    }
    return ended;
  }
  bool done() const { return done_; }

 private:
  std::string head_;
  bool head_done_ = false;
  bool done_ = false;
  size_t skip_ = 0;  // bytes of a chunk's data and its line end
  size_t size_ = 0;
};

void run_client(uint16_t port, int num_streams, const std::string& request, ClientReport& report) {
  struct Stream {
    int fd = -1;
    ChunkCounter chunks;
    Clock::time_point last{};
  };
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int epoll = ::epoll_create1(0);
  std::vector<Stream> streams(static_cast<size_t>(num_streams));
  for (size_t i = 0; i < streams.size(); ++i) {
    streams[i].fd = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(streams[i].fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
      throw std::runtime_error("cannot connect");
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    ::epoll_ctl(epoll, EPOLL_CTL_ADD, streams[i].fd, &event);
  }
  std::vector<float> gaps, firsts;
  gaps.reserve(static_cast<size_t>(num_streams) * 1024);
  std::vector<char> buffer(256 << 10);
  std::vector<epoll_event> ready(512);
  const double cpu_begin = process_seconds();
  const auto begin = Clock::now();
  for (Stream& stream : streams) {
    if (::send(stream.fd, request.data(), request.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(request.size()))
      throw std::runtime_error("cannot send");
  }
  for (int open = num_streams; open > 0;) {
    const int count = ::epoll_wait(epoll, ready.data(), static_cast<int>(ready.size()), 30'000);
    if (count <= 0) throw std::runtime_error("no stream advanced for thirty seconds");
    for (int r = 0; r < count; ++r) {
      Stream& stream = streams[ready[static_cast<size_t>(r)].data.u64];
      const ssize_t n = ::recv(stream.fd, buffer.data(), buffer.size(), 0);
      if (n <= 0) throw std::runtime_error("a stream broke");
      const int events = stream.chunks.feed({buffer.data(), static_cast<size_t>(n)});
      const auto now = Clock::now();
      report.events += events;
      for (int e = 0; e < events; ++e) {
        const bool first = stream.last == Clock::time_point{};
        const std::chrono::duration<float, std::milli> gap = now - (first ? begin : stream.last);
        (first ? firsts : gaps).push_back(gap.count());
        stream.last = now;
      }
      if (stream.chunks.done()) {
        ::epoll_ctl(epoll, EPOLL_CTL_DEL, stream.fd, nullptr);
        --open;
      }
    }
  }
  report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  report.cpu_seconds = process_seconds() - cpu_begin;
  double sum = 0.0;
  for (const float gap : gaps) sum += static_cast<double>(gap);
  report.itl_mean_ms = gaps.empty() ? 0.0 : sum / static_cast<double>(gaps.size());
  report.itl_p50_ms = percentile(gaps, 0.5);
  report.itl_p99_ms = percentile(gaps, 0.99);
  report.ttft_p50_ms = percentile(firsts, 0.5);
  report.ok = true;
}

// Holds a forked client, its report in shared memory, and a pipe that tells it the port.
class ClientProcess {
 public:
  ClientProcess(int num_streams, const std::string& request) {
    void* memory =
        ::mmap(nullptr, sizeof(ClientReport), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || ::pipe(pipe_) != 0) throw std::runtime_error("no memory or pipe");
    report_ = new (memory) ClientReport;
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::close(pipe_[1]);
    uint16_t port = 0;
    try {
      if (::read(pipe_[0], &port, sizeof(port)) == sizeof(port)) {
        run_client(port, num_streams, request, *report_);
      }
    } catch (const std::exception& error) {
      std::strncpy(report_->why, error.what(), sizeof(report_->why) - 1);
    }
    ::_exit(0);
  }
  ~ClientProcess() {
    ::close(pipe_[0]);
    ::close(pipe_[1]);
    if (!reaped_) ::waitpid(pid_, nullptr, 0);
    ::munmap(report_, sizeof(ClientReport));
  }
  const ClientReport& run(uint16_t port) {
    if (::write(pipe_[1], &port, sizeof(port)) != sizeof(port))
      throw std::runtime_error("the client has gone");
    ::waitpid(pid_, nullptr, 0);
    reaped_ = true;
    return *report_;
  }

 private:
  ClientReport* report_ = nullptr;
  int pipe_[2] = {-1, -1};
  pid_t pid_ = -1;
  bool reaped_ = false;
};

// ---- the bench -----------------------------------------------------------------------------------------

enum Endpoint : int64_t { kGenerate, kChat, kGenerateIncremental, kMessages, kResponses };

struct PathAndBody {
  std::string_view path;
  std::string body;
};

// Returns a streamed request for exactly `num_tokens` tokens.
PathAndBody request_of(int64_t endpoint, int64_t num_tokens) {
  constexpr std::string_view kConversation =
      R"("messages":[{"role":"user","content":"What is a trench?"}],"model":"hadal-tiny")";
  constexpr std::string_view kStream = R"("ignore_eos":true,"stream":true)";
  switch (endpoint) {
    case kChat:
    case kMessages:
      return {endpoint == kChat ? "/v1/chat/completions" : "/v1/messages",
              fmt::format("{{{},\"max_tokens\":{},{}}}", kConversation, num_tokens, kStream)};
    case kResponses:
      return {"/v1/responses",
              fmt::format(R"({{"input":"What is a trench?","model":"hadal-tiny","max_output_tokens":{},{}}})",
                          num_tokens, kStream)};
    default:
      return {"/generate",
              fmt::format("{{\"text\":\"What is a trench?\",\"sampling_params\":{{\"max_new_tokens\":{},"
                          "\"ignore_eos\":true}},\"stream\":true}}",
                          num_tokens)};
  }
}

std::string http_request(int64_t endpoint, int64_t num_tokens) {
  const auto [path, body] = request_of(endpoint, num_tokens);
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
      path, body.size(), body);
}

void BM_HostPath(benchmark::State& state) {
  const int64_t endpoint = state.range(0);
  const int num_streams = static_cast<int>(state.range(1));
  const int64_t num_tokens = state.range(2);
  const std::chrono::milliseconds step(state.range(3));
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  set_log_level(LogLevel::kWarning);

  for (auto _ : state) {
    ClientProcess client(num_streams, http_request(endpoint, num_tokens));  // before there are threads
    const auto tokenizer = Tokenizer::load(source_dir() + "/models/hadal-tiny").value();
    ModelConfig config;
    config.vocab_size = tokenizer->vocab_size();
    config.max_position_embeddings = 4096;
    config.eos_token_ids = {1};
    EngineOptions engine_options;
    engine_options.max_running_requests = num_streams;
    engine_options.max_total_tokens = (num_streams + 1) * ((num_tokens + 64 + 127) / 64) * 64;
    engine_options.context_length = 4096;
    engine_options.decode_log_interval = 0;
    const auto engine =
        Engine::create(std::make_unique<StandInExecutor>(words_of(*tokenizer), step), config, engine_options)
            .value();
    ServerOptions options;
    options.model_path = options.tokenizer_path = options.served_model_name = "hadal-tiny";
    options.max_running_requests = num_streams;
    options.stream_output_incremental = endpoint == kGenerateIncremental;
    constexpr int kIoThreads = 2;
    Server server({.options = options,
                   .config = config,
                   .engine = *engine,
                   .tokenizer = tokenizer.get(),
                   .chat_format = ChatFormat::kV25},
                  kIoThreads);
    HttpServerOptions http;
    http.port = 0;
    http.num_threads = kIoThreads;
    http.limits.max_connections = num_streams + 16;
    if (!server.listen(http).ok()) return state.SkipWithError("the server cannot listen");
    server.set_ready(0.0);

    const double cpu_begin = process_seconds();
    const ClientReport report = client.run(server.port());
    const double server_cpu = process_seconds() - cpu_begin;
    server.stop();
    const int64_t tokens = num_tokens * num_streams;
    if (!report.ok) return state.SkipWithError(report.why);
    if (engine->stats().generation_tokens != tokens) return state.SkipWithError("tokens are missing");
    state.SetIterationTime(report.seconds);
    const auto count = static_cast<double>(tokens);
    state.counters["tokens_per_s"] = count / report.seconds;
    state.counters["events_per_token"] = static_cast<double>(report.events) / count;
    state.counters["server_us"] = server_cpu * 1e6 / count;
    state.counters["client_us"] = report.cpu_seconds * 1e6 / count;
    state.counters["itl_mean_ms"] = report.itl_mean_ms;
    state.counters["itl_p50_ms"] = report.itl_p50_ms;
    state.counters["itl_p99_ms"] = report.itl_p99_ms;
    state.counters["ttft_p50_ms"] = report.ttft_p50_ms;
  }
}
BENCHMARK(BM_HostPath)
    ->ArgNames({"endpoint", "streams", "tokens", "step_ms"})
    ->Args({kGenerate, 1024, 400, 0})
    ->Args({kGenerateIncremental, 1024, 400, 0})
    ->Args({kChat, 1024, 400, 0})
    ->Args({kMessages, 1024, 400, 0})
    ->Args({kResponses, 1024, 400, 0})
    ->Args({kGenerate, 1024, 200, 39})
    ->Args({kChat, 1024, 200, 39})
    ->Args({kGenerate, 1024, 400, 17})
    ->Args({kChat, 1024, 400, 17})
    ->Args({kGenerate, 1024, 400, 10})
    ->Args({kChat, 1024, 400, 10})
    ->Args({kGenerate, 1024, 400, 7})
    ->Args({kChat, 1024, 400, 7})
    ->Args({kMessages, 1024, 400, 7})
    ->Args({kResponses, 1024, 400, 7})
    ->Args({kChat, 4096, 100, 39})
    ->Iterations(1)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace hadal::server
