// Tests that work which belongs to no single request goes on without memory, even if the reserve is used up.
// The cases are the audit log's thread, a stream whose client resumes reading, and a request that its handler
// drops. Afterwards none of them holds memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "server/admission/audit_log.h"
#include "server/admission/request_memory.h"
#include "tests/allocation/failing_allocator.h"
#include "tests/server/http_test_client.h"
#include "tests/server/http_test_server.h"
#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

using hadal::testing::Exempt;
using hadal::testing::Failure;
using hadal::testing::Victims;
using testing::TestClient;
using testing::TestServer;

// TemporaryFile is a path in a directory of its own; both are removed with the object.
class TemporaryFile {
 public:
  TemporaryFile() {
    std::string pattern = ::testing::TempDir() + "hadal_audit_XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFile() { std::filesystem::remove_all(directory_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  std::string path() const { return directory_ + "/audit.jsonl"; }

 private:
  std::string directory_;
};

size_t num_lines(const std::string& path) {
  std::ifstream file(path);
  size_t count = 0;
  for (std::string line; std::getline(file, line);) ++count;
  return count;
}

class Quiet : public ::testing::Test {
 protected:
  Quiet() { set_log_level(LogLevel::kOff); }
  ~Quiet() override { set_log_level(LogLevel::kInfo); }

  const MemoryReserve reserve_;
};

class AuditThread : public Quiet {};

TEST_F(AuditThread, LivesWhereverAnAllocationFails) {
  const Exempt exempt;
  set_log_level(LogLevel::kInfo);
  ::testing::internal::CaptureStderr();
  int64_t k = 0;
  for (bool has_fired = true; has_fired; ++k) {
    const TemporaryFile file;
    const auto log = AuditLog::open(file.path()).value();
    log->start();
    log->write("first");
    log->flush();
    // The thread logs that it loses lines, that it cannot reopen the path, and that it has reopened it.
    std::filesystem::remove(file.path());
    std::filesystem::create_symlink("/dev/full", file.path());
    hadal::testing::fail_allocation(k + 1, Victims::kAll, Failure::kAtOnce);
    log->reopen();
    log->write("lost");
    log->flush();
    std::filesystem::remove(file.path());
    std::filesystem::create_directory(file.path());
    log->reopen();
    log->flush();
    std::filesystem::remove(file.path());
    log->reopen();
    log->write("kept");
    log->flush();
    has_fired = hadal::testing::stop_failing();
    EXPECT_EQ(log->num_lost(), 1) << "call " << k + 1;
    EXPECT_EQ(num_lines(file.path()), 1U) << "call " << k + 1;
  }
  ::testing::internal::GetCapturedStderr();
  EXPECT_GT(k, 5);
}

TEST_F(AuditThread, WritesWithoutACopy) {
  const TemporaryFile file;
  const auto log = AuditLog::open(file.path()).value();
  const std::string line(1 << 20, 'x');
  for (int i = 0; i < 5; ++i) log->write(line);
  const int64_t before = hadal::testing::live_bytes();
  hadal::testing::reset_peak();
  log->start();
  log->flush();
  EXPECT_LT(hadal::testing::peak_bytes() - before, 1 << 20);
  EXPECT_EQ(num_lines(file.path()), 5U);
}

class SlowReader : public Quiet {};

// Wherever an allocation fails while a client resumes reading, its stream ends: with the answer or with an
// error.
TEST_F(SlowReader, AlwaysGetsTheEndOfItsStream) {
  const auto memory = std::make_shared<RequestMemory>(size_t{1} << 30);
  testing::TestServerOptions options;
  options.server.memory = memory;
  TestServer server(std::move(options));
  std::thread([&] {
    hadal::testing::mark_this_thread();
    int64_t k = 0;
    for (bool has_fired = true; has_fired && !HasFailure(); ++k) {
      const auto exchange = server.send(
          "POST", "/v1/completions",
          R"({"model":"m","prompt":"Hi","max_tokens":40,"ignore_eos":true,"n":3,"logprobs":1,"stream":true})");
      exchange->is_writable = false;
      ASSERT_TRUE(server.io().run_until([&] { return exchange->num_writes > 0; }));
      ASSERT_TRUE(server.io().run_until([&] { return server.engine().stats().scheduler.num_running == 0; }));
      bool all_arrived = false;  // true once everything sent so far has arrived; it is held
      server.io().post([&] { all_arrived = true; });
      ASSERT_TRUE(server.io().run_until([&] { return all_arrived; }));
      hadal::testing::fail_allocation(k + 1, Victims::kMarked, Failure::kAtOnce);
      try {
        exchange->read_again();
      } catch (const std::bad_alloc&) {
        // The transport logs this exception and goes on.
      }
      has_fired = hadal::testing::stop_failing();
      ASSERT_TRUE(server.wait(*exchange)) << "call " << k + 1;
      EXPECT_TRUE(exchange->response.body.ends_with("data: [DONE]\n\n")) << "call " << k + 1;
      EXPECT_EQ(memory->total(), 0U) << "call " << k + 1;
    }
    EXPECT_GT(k, 3);
  }).join();
}

class DroppedRequest : public Quiet {};

TEST_F(DroppedRequest, IsAnsweredEvenIfItsThreadHasNoMemory) {
  const Exempt exempt;
  std::vector<std::thread> handlers;
  const auto server = testing::start_server(
      [&](std::shared_ptr<HttpExchange> exchange) {
        if (exchange->request().path != "/drop") return exchange->respond(testing::text_response("ok"));
        const int64_t k = std::stoll(exchange->request().body);
        handlers.emplace_back([exchange = std::move(exchange), k]() mutable {
          hadal::testing::mark_this_thread();
          hadal::testing::fail_allocation(k, Victims::kMarked, Failure::kAtOnce);
          exchange.reset();
          hadal::testing::stop_failing();
        });
      },
      [](HttpServerOptions& options) { options.num_threads = 1; });
  for (int k = 1; k <= 6; ++k) {
    TestClient client(server->port());
    EXPECT_EQ(client.post("/drop", std::to_string(k)).status, 500) << "call " << k;
    EXPECT_EQ(client.get("/").status, 200) << "call " << k;
  }
  server->stop();
  for (std::thread& handler : handlers) handler.join();
}

class HealthProbes : public Quiet {};

TEST_F(HealthProbes, ThatAreOverHoldNextToNothing) {
  TestServer server;
  const auto probe = [&](int count) {
    for (int i = 0; i < count; ++i) ASSERT_EQ(server.call("GET", "/health_generate").status, 200);
  };
  probe(20);
  const int64_t before = hadal::testing::live_bytes();
  constexpr int kCount = 500;
  probe(kCount);
  const int64_t each = (hadal::testing::live_bytes() - before) / kCount;
  std::printf("a probe that is over holds %ld bytes\n", static_cast<long>(each));
  EXPECT_LT(each, 400) << "a timer is left of each, and no generation";
}

}  // namespace
}  // namespace hadal::server
