// Tests that the ledger counts connections, and which connections are refused when their memory is in use.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/http/http_ledger.h"
#include "tests/server/http_test_client.h"
#include "tests/server/http_test_server.h"
#include "tests/server/tls_files.h"

namespace hadal::server {
namespace {

using testing::eventually;
using testing::TestClient;

class ConnectionMemory : public ::testing::Test {
 protected:
  // Starts a server whose connections may have `bytes` of memory together.
  void start(size_t bytes, const std::function<void(HttpServerOptions&)>& change = {}) {
    memory_ = std::make_shared<RequestMemory>(8 * bytes);
    server_ = testing::start_server(
        [](const std::shared_ptr<HttpExchange>& exchange) {
          exchange->respond(testing::text_response("ok"));
        },
        [&](HttpServerOptions& options) {
          options.memory = memory_;
          options.limits.max_connections_per_peer = 100;
          if (change) change(options);
        });
  }
  size_t counted() const { return memory_->bytes(MemoryKind::kConnection); }

  // Opens connections with a part of a request each. None of them is idle, so none makes room for another.
  std::vector<std::unique_ptr<TestClient>> open_busy(size_t count) {
    std::vector<std::unique_ptr<TestClient>> clients;
    for (size_t i = 0; i < count; ++i) {
      clients.push_back(std::make_unique<TestClient>(server_->port()));
      clients.back()->send("GET /x HTTP/1.1\r\n");
    }
    return clients;
  }

  std::shared_ptr<RequestMemory> memory_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(ConnectionMemory, IsCountedFromAcceptToClose) {
  start(100 * kConnectionBytes);
  EXPECT_EQ(memory_->total(), 0U);
  auto clients = open_busy(8);
  EXPECT_TRUE(eventually([&] { return counted() == 8 * kConnectionBytes; }));
  clients.resize(3);
  EXPECT_TRUE(eventually([&] { return counted() == 3 * kConnectionBytes; }));
  clients.clear();
  EXPECT_TRUE(eventually([&] { return memory_->total() == 0; }));
}

TEST_F(ConnectionMemory, BeyondItsShareANewConnectionGets503) {
  start(8 * kConnectionBytes);
  auto busy = open_busy(8);
  ASSERT_TRUE(eventually([&] { return memory_->bytes(MemoryKind::kHeader) == 8 * HeadCharge::kBlock; }));
  {
    TestClient refused(server_->port());
    const auto answer = refused.receive_response();
    EXPECT_EQ(answer.status, 503);
    EXPECT_EQ(answer.headers.count("retry-after"), 1U);
    EXPECT_NE(answer.body.find("max-request-memory"), std::string::npos) << answer.body;
  }
  EXPECT_EQ(memory_->refused(MemoryKind::kConnection), 1);
  EXPECT_EQ(server_->ledger().refused(Refusal::kMemory), 1);
  busy.resize(4);
  EXPECT_TRUE(eventually([&] { return counted() == 4 * kConnectionBytes; }));
  TestClient served(server_->port());
  EXPECT_EQ(served.get("/").status, 200);
  served.close();
  busy.clear();
  EXPECT_TRUE(eventually([&] { return memory_->total() == 0; }));
}

TEST_F(ConnectionMemory, ConnectionsThatAreRefusedTogetherHaveAQuarterMore) {
  start(8 * kConnectionBytes);
  const auto busy = open_busy(8);
  ASSERT_TRUE(eventually([&] { return memory_->bytes(MemoryKind::kHeader) == 8 * HeadCharge::kBlock; }));
  std::vector<std::unique_ptr<TestClient>> refused;
  int num_unanswered = 0;
  for (int i = 0; i < 20; ++i) {
    refused.push_back(std::make_unique<TestClient>(server_->port()));
    const int status = refused.back()->receive_response().status;
    EXPECT_TRUE(status == 503 || status == 0) << status;
    num_unanswered += status == 0 ? 1 : 0;
    EXPECT_LE(counted(), 10 * kConnectionBytes);
  }
  EXPECT_GT(num_unanswered, 0);
  EXPECT_EQ(memory_->refused(MemoryKind::kConnection), 20);
  EXPECT_EQ(server_->ledger().refused(Refusal::kMemory), 20);
}

TEST_F(ConnectionMemory, AnIdleConnectionMakesRoom) {
  start(2 * kConnectionBytes, [](HttpServerOptions& options) { options.limits.min_idle = {}; });
  TestClient idle(server_->port());
  EXPECT_EQ(idle.get("/").status, 200);
  for (int i = 0; i < 20; ++i) {
    TestClient next(server_->port());
    EXPECT_EQ(next.get("/").status, 200) << i;
  }
  EXPECT_EQ(memory_->refused(MemoryKind::kConnection), 0);
}

TEST_F(ConnectionMemory, ServesSmallRequestsWhenOtherMemoryIsInUse) {
  start(8 * kConnectionBytes);
  ASSERT_TRUE(memory_->take(MemoryKind::kOutput, memory_->limit()));
  TestClient client(server_->port());
  EXPECT_EQ(client.get("/").status, 200);
  memory_->give_back(MemoryKind::kOutput, memory_->limit());
}

TEST_F(ConnectionMemory, OfTlsIsCountedBeforeTheHandshake) {
  const testing::TlsFiles files;
  start(100 * (kConnectionBytes + kTlsBytes), [&](HttpServerOptions& options) {
    options.tls_keyfile = files.path("key.pem");
    options.tls_certfile = files.path("cert.pem");
  });
  std::vector<std::unique_ptr<TestClient>> silent;
  for (int i = 0; i < 5; ++i) silent.push_back(std::make_unique<TestClient>(server_->port()));
  EXPECT_TRUE(eventually([&] { return counted() == 5 * (kConnectionBytes + kTlsBytes); }));
  silent.clear();
  EXPECT_TRUE(eventually([&] { return memory_->total() == 0; }));
}

}  // namespace
}  // namespace hadal::server
