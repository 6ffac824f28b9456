// Measures checking and fetching a file in large file storage. The server is a forked process on loopback
// that sends a file of zeros from memory with sendfile. In both rows bytes_per_second is the rate.
#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/log.h"
#include "hub/checksum.h"
#include "hub/download.h"

namespace hadal::hub {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFileBytes = int64_t{256} << 20;

const std::string& checksum_of_zeros() {
  static const std::string checksum = [] {
    Checksum sha256(std::string(64, '0'), kFileBytes);
    const std::vector<std::byte> zeros(size_t{1} << 20);
    for (int64_t done = 0; done < kFileBytes; done += static_cast<int64_t>(zeros.size())) sha256.add(zeros);
    return sha256.finish();
  }();
  return checksum;
}

// Answers every request with the file of zeros, a thread for each connection.
class ZeroServer {
 public:
  ZeroServer() {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address);
    if (::bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener, 64) != 0 ||
        ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      throw std::runtime_error("cannot listen on loopback");
    }
    port_ = ntohs(address.sin_port);
    child_ = ::fork();
    if (child_ == 0) serve(listener);
    ::close(listener);
  }
  ~ZeroServer() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  std::string url() const { return fmt::format("http://127.0.0.1:{}", port_); }

 private:
  [[noreturn]] static void serve(int listener) {
    const int zeros = ::memfd_create("zeros", MFD_CLOEXEC);
    if (zeros < 0 || ::ftruncate(zeros, kFileBytes) != 0) ::_exit(1);
    while (true) {
      const int connection = ::accept(listener, nullptr, nullptr);
      std::thread([connection, zeros] { answer(connection, zeros); }).detach();
    }
  }

  static void answer(int connection, int zeros) {
    const std::string head = fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", kFileBytes);
    std::string request;
    char buffer[4096];
    for (ssize_t count; (count = ::read(connection, buffer, sizeof(buffer))) > 0;) {
      request.append(buffer, static_cast<size_t>(count));
      if (!request.ends_with("\r\n\r\n")) continue;
      request.clear();
      if (::write(connection, head.data(), head.size()) < 0) break;
      off_t at = 0;
      while (at<kFileBytes&& ::sendfile(connection, zeros, &at, static_cast<size_t>(kFileBytes - at))> 0) {
      }
    }
    ::close(connection);
  }

  int port_ = 0;
  pid_t child_ = -1;
};

void hub_checksum(benchmark::State& state) {
  const std::vector<std::byte> piece(size_t{16} << 10);
  const std::string kinds[] = {std::string(64, '0'), std::string(40, '0')};
  for (auto _ : state) {
    Checksum checksum(kinds[state.range(0)], kFileBytes);
    for (int64_t done = 0; done < kFileBytes; done += static_cast<int64_t>(piece.size())) checksum.add(piece);
    benchmark::DoNotOptimize(checksum.finish());
  }
  state.SetBytesProcessed(state.iterations() * kFileBytes);
  state.SetLabel(state.range(0) == 0 ? "SHA-256, one thread" : "git's SHA-1, one thread");
}
BENCHMARK(hub_checksum)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

// Fetches as many files as the argument says at the same time. Each belongs to a repository of its own, so
// none of them is found in the cache of another.
void hub_fetch(benchmark::State& state) {
  set_log_level(LogLevel::kError);
  const ZeroServer server;
  const HubAccess access{.endpoint = server.url()};
  const auto num_files = static_cast<size_t>(state.range(0));
  const RemoteFile file{.name = "model.safetensors", .size = kFileBytes, .checksum = checksum_of_zeros()};
  std::string pattern = (fs::temp_directory_path() / "hadal-hub-bench-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  for (auto _ : state) {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < num_files; ++i) {
      threads.emplace_back([&, i] {
        const RemoteCommit from{.repository = fmt::format("org/name{}", i), .commit = std::string(40, 'a')};
        const auto fetched =
            download_files({file}, from, access, CachedRepository(pattern, from.repository), {});
        if (!fetched.ok()) throw std::runtime_error(fetched.status().message);
      });
    }
    threads.clear();
    state.PauseTiming();
    for (const auto& entry : fs::directory_iterator(pattern)) fs::remove_all(entry.path());
    state.ResumeTiming();
  }
  fs::remove_all(pattern);
  state.SetBytesProcessed(state.iterations() * kFileBytes * static_cast<int64_t>(num_files));
  state.SetLabel("fetched, checked and written");
}
BENCHMARK(hub_fetch)->ArgName("files")->Arg(1)->Arg(2)->Arg(4)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace hadal::hub

BENCHMARK_MAIN();
