// Tests what a server does when it is full of connections: connections that wait for a request make room for
// new clients, the idlest first, and no running request is cut off.
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/server/http_test_client.h"
#include "tests/server/http_test_server.h"

namespace hadal::server {
namespace {

using testing::Counter;
using testing::eventually;
using testing::start_server;
using testing::TestClient;
using testing::text_response;

constexpr int kPlaces = 4;

// This server answers at once, but answers requests of /wait only at the end of the test.
class IdleTest : public ::testing::TestWithParam<int> {
 protected:
  void start(std::chrono::milliseconds min_idle = std::chrono::milliseconds(0)) {
    server_ = start_server(
        [this](const std::shared_ptr<HttpExchange>& exchange) {
          if (exchange->request().path != "/wait") return exchange->respond(text_response("ok"));
          const std::lock_guard lock(mutex_);
          waiting_.push_back(exchange);
          started_.add();
        },
        [&](HttpServerOptions& options) {
          options.num_threads = GetParam();
          options.limits.max_connections = kPlaces;
          options.limits.max_connections_per_peer = kMaxConnectionsPerPeer;
          options.limits.min_idle = min_idle;
        });
  }
  void TearDown() override {
    waiting_.clear();
    if (server_) server_->stop();
  }
  // Requests an answer and waits until the server counts the connection as idle. The client may have the
  // answer before that, but the I/O thread does both in one task, and a task posted to it runs after that.
  void ask(TestClient& client) {
    ASSERT_EQ(client.get("/").status, 200);
    Counter tasks;
    for (int i = 0; i < server_->num_threads(); ++i) server_->io_thread(i).post([&] { tasks.add(); });
    ASSERT_TRUE(tasks.wait_for(server_->num_threads()));
  }
  // Fills all places with connections that have had an answer, the idlest first.
  void fill() {
    for (int i = 0; i < kPlaces; ++i) {
      clients_.push_back(std::make_unique<TestClient>(server_->port()));
      ask(*clients_.back());
    }
  }

  std::unique_ptr<HttpServer> server_;
  std::vector<std::unique_ptr<TestClient>> clients_;
  Counter started_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<HttpExchange>> waiting_;  // guarded by mutex_
};

TEST_P(IdleTest, TheIdlestConnectionMakesRoomForANewClient) {
  start();
  fill();
  ask(*clients_[0]);  // now the second one is the idlest
  TestClient first(server_->port());
  ask(first);
  EXPECT_TRUE(clients_[1]->receive_to_end());
  TestClient second(server_->port());
  EXPECT_EQ(second.get("/").status, 200);
  EXPECT_TRUE(clients_[2]->receive_to_end());
  for (const int kept : {0, 3}) EXPECT_EQ(clients_[kept]->get("/").status, 200) << kept;
  EXPECT_EQ(server_->ledger().idle_cuts(), 2);
  EXPECT_EQ(server_->ledger().refused(Refusal::kConnections), 0);
}

TEST_P(IdleTest, EveryNewClientIsAnsweredAtOnce) {
  start();
  for (int i = 0; i < 20 * kPlaces; ++i) {
    clients_.push_back(std::make_unique<TestClient>(server_->port()));
    ASSERT_EQ(clients_.back()->get("/").status, 200) << i;
  }
  EXPECT_TRUE(eventually([&] { return server_->ledger().idle_cuts() == 19 * kPlaces; }));
  EXPECT_TRUE(eventually([&] { return server_->num_connections() == kPlaces; }));
}

TEST_P(IdleTest, ConnectionsWithARequestAreKept) {
  start();
  fill();
  for (const int busy : {0, 1}) clients_[busy]->send("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(started_.wait_for(2));
  for (const int partly : {2, 3}) clients_[partly]->send("GET / HT");
  ASSERT_TRUE(eventually([&] { return clients_[2]->server_has_read() && clients_[3]->server_has_read(); }));
  TestClient extra(server_->port());
  EXPECT_EQ(extra.get("/").status, 503);
  extra.close();
  for (const int partly : {2, 3}) {
    clients_[partly]->send("TP/1.1\r\nHost: h\r\n\r\n");
    EXPECT_EQ(clients_[partly]->receive_response().status, 200);
  }
  EXPECT_EQ(server_->ledger().idle_cuts(), 0);
  {
    const std::lock_guard lock(mutex_);
    for (const auto& exchange : waiting_)
      exchange->io().post([exchange] { exchange->respond(text_response("late")); });
  }
  for (const int busy : {0, 1}) EXPECT_EQ(clients_[busy]->receive_response().body, "late");
}

TEST_P(IdleTest, EmptyLinesBeforeARequestDoNotKeepAConnection) {
  start();
  fill();
  clients_[0]->send("\r\n");
  ASSERT_TRUE(eventually([&] { return clients_[0]->server_has_read(); }));
  EXPECT_EQ(TestClient(server_->port()).get("/").status, 200);
  EXPECT_TRUE(clients_[0]->receive_to_end());
  EXPECT_EQ(clients_[1]->get("/").status, 200);
}

TEST_P(IdleTest, AConnectionThatIsNewOrWasJustServedIsSpared) {
  start(std::chrono::hours(1));
  fill();
  EXPECT_EQ(TestClient(server_->port()).get("/").status, 503);
  for (const auto& client : clients_) EXPECT_EQ(client->get("/").status, 200);
}

TEST_P(IdleTest, ConnectionsThatNeverSentARequestMakeRoom) {
  start();
  for (int i = 0; i < kPlaces; ++i) clients_.push_back(std::make_unique<TestClient>(server_->port()));
  ASSERT_TRUE(eventually([&] { return server_->num_connections() == kPlaces; }));
  EXPECT_EQ(TestClient(server_->port()).get("/").status, 200);
}

INSTANTIATE_TEST_SUITE_P(Threads, IdleTest, ::testing::Values(1, 3));

}  // namespace
}  // namespace hadal::server
