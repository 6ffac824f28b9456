// Tests the transport's limits: connections of all peers and of one peer, bodies of all clients and of one
// client, and requests that are refused at their headers.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/server/http_fault_fixture.h"

namespace hadal::server {
namespace {

using testing::eventually;
using testing::FaultTest;
using testing::TestClient;
using testing::text_response;

TEST_F(FaultTest, TooManyConnectionsGetA503) {
  start([](HttpServerOptions& options) {
    options.limits.max_connections = 4;
    options.limits.max_connections_per_peer = kMaxConnectionsPerPeer;
    options.limits.min_idle = std::chrono::hours(1);
  });
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<TestClient>(server_->port()));
    EXPECT_EQ(clients.back()->get("/").status, 200);
  }
  TestClient extra(server_->port());
  const auto refused = extra.get("/");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.count("retry-after"), 1u);
  EXPECT_TRUE(extra.receive_to_end());
  extra.close();
  clients.pop_back();
  EXPECT_TRUE(eventually([&] { return TestClient(server_->port()).get("/").status == 200; }));
}

// A child process owns the clients' ends, so that both ends fit under the descriptor limit.
TEST_F(FaultTest, TenThousandConnectionsAreServedAndOneMoreIsRefused) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const int connections = static_cast<int>(std::min<rlim_t>(10'000, limit.rlim_max / 4 * 3 - 200));
  int to_child[2], to_parent[2];
  ASSERT_EQ(::pipe2(to_child, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(to_parent, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(to_child[1]);
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    uint16_t port = 0;
    if (::read(to_child[0], &port, sizeof(port)) != sizeof(port)) ::_exit(1);
    int connected = 0;
    std::vector<std::unique_ptr<TestClient>> clients;
    for (int i = 0; i < connections; ++i) {
      clients.push_back(std::make_unique<TestClient>(port));
      connected +=
          clients.back()->connected() && clients.back()->send("GET / HTTP/1.1\r\nHost: h\r\n\r\n") ? 1 : 0;
    }
    int answered = 0;
    for (auto& client : clients) answered += client->receive_response().status == 200 ? 1 : 0;
    const int result = connected == connections ? answered : -connected;
    if (::write(to_parent[1], &result, sizeof(result)) < 0) ::_exit(1);
    char byte;
    const ssize_t ignored = ::read(to_child[0], &byte, 1);  // blocks until the parent closes its end
    ::_exit(ignored == 0 ? 0 : 1);
  }
  ::close(to_child[0]);
  ::close(to_parent[1]);
  start([](HttpServerOptions& options) { options.limits.max_connections_per_peer = 16384; });
  const uint16_t port = server_->port();
  ASSERT_EQ(::write(to_child[1], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
  int answered = 0;
  ASSERT_EQ(::read(to_parent[0], &answered, sizeof(answered)), static_cast<ssize_t>(sizeof(answered)));
  EXPECT_EQ(answered, connections);
  EXPECT_EQ(server_->num_connections(), connections);
  EXPECT_EQ(TestClient(port).get("/").status, 200);
  ::close(to_child[1]);
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(to_parent[0]);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(none_left());
}

TEST_F(FaultTest, TooManyConnectionsOfOnePeerGetA503) {
  start([](HttpServerOptions& options) { options.limits.max_connections_per_peer = 2; });
  TestClient first(server_->port());
  TestClient second(server_->port());
  EXPECT_EQ(first.get("/").status, 200);
  EXPECT_EQ(second.get("/").status, 200);
  TestClient third(server_->port());
  const auto refused = third.get("/");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.count("retry-after"), 1U);
  EXPECT_EQ(server_->ledger().refused(Refusal::kPeerConnections), 1);
  for (TestClient* client : {&first, &second, &third}) client->close();
  EXPECT_TRUE(none_left());
  EXPECT_TRUE(eventually([&] { return server_->ledger().num_accounts() == 0; }));
}

// One client's share ends before the total does; another client still gets in, and every counter returns to
// zero.
TEST_F(FaultTest, OneClientsBodiesLeaveRoomForAnother) {
  start([](HttpServerOptions& options) {
    options.num_threads = 1;
    options.limits.total_body_bytes = 1'000'000;
    options.gate = [](const HttpRequest& request) {
      HttpAdmission out;
      if (const auto key = request.header("key")) out.client = "key:" + std::string(*key);
      return out;
    };
  });
  const auto head = [](const std::string& key) {
    return "POST /x HTTP/1.1\r\nHost: h\r\nKey: " + key + "\r\nContent-Length: 200000\r\n\r\n";
  };
  TestClient first(server_->port());
  first.send(head("a") + std::string(150'000, 'a'));
  ASSERT_TRUE(eventually([&] { return server_->ledger().body_bytes() == 200'000; }));
  TestClient second(server_->port());
  second.send(head("a") + std::string(150'000, 'a'));
  const auto refused = second.receive_response();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.count("retry-after"), 1U);
  EXPECT_EQ(server_->ledger().refused(Refusal::kClientBodies), 1);
  TestClient other(server_->port());
  other.send(head("b") + std::string(200'000, 'b'));
  EXPECT_EQ(other.receive_response().status, 200);
  first.send(std::string(50'000, 'a'));
  EXPECT_EQ(first.receive_response().status, 200);
  EXPECT_TRUE(eventually([&] { return server_->ledger().body_bytes() == 0; }));
  for (TestClient* client : {&first, &second, &other}) client->close();
  EXPECT_TRUE(eventually([&] { return server_->ledger().num_accounts() == 0; }));
}

TEST_F(FaultTest, ARefusedRequestCostsItsHeadersOnly) {
  start([](HttpServerOptions& options) {
    options.gate = [](const HttpRequest& request) {
      HttpAdmission out;
      if (request.path == "/none") out.max_body_bytes = 0;
      if (request.path != "/secret") return out;
      out.reason = Refusal::kKey;
      out.refusal = text_response("no", 401);
      return out;
    };
  });
  for (const std::string& wire :
       {std::string("POST /secret HTTP/1.1\r\nHost: h\r\nContent-Length: 60000000\r\n\r\n"),
        std::string("POST /secret HTTP/1.1\r\nHost: h\r\nContent-Length: 999999999999\r\n\r\n"),
        std::string("POST /secret HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\nabc"),
        std::string(
            "POST /secret HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n")}) {
    TestClient client(server_->port());
    client.send(wire);
    const auto answer = client.receive_response();
    EXPECT_EQ(answer.status, 401);
    EXPECT_EQ(answer.headers.at("connection"), "close");
    client.half_close();
    EXPECT_TRUE(client.receive_to_end());
    EXPECT_EQ(server_->ledger().body_bytes(), 0U);
  }
  EXPECT_EQ(server_->ledger().refused(Refusal::kKey), 4);
}

TEST_F(FaultTest, AfterARefusalAClientCannotSendWithoutEnd) {
  start([](HttpServerOptions& options) {
    options.gate = [](const HttpRequest&) {
      HttpAdmission out;
      out.reason = Refusal::kKey;
      out.refusal = text_response("no", 401);
      return out;
    };
  });
  TestClient client(server_->port());
  client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000\r\n\r\n");
  // The server reads 1 MiB of the pieces, and the buffers of both sides hold a few MiB more.
  const std::string piece(size_t{1} << 20, 'x');
  int sent = 0;
  while (sent < 200 && client.send(piece)) ++sent;
  EXPECT_LT(sent, 200);
  EXPECT_EQ(client.receive_response().status, 401) << "it can be read all the same";
  EXPECT_TRUE(none_left());
}

TEST_F(FaultTest, ABodyThatIsTooLongCanBeSentBeforeTheRefusalIsRead) {
  start([](HttpServerOptions& options) { options.limits.body_bytes = size_t{32} << 20; });
  TestClient client(server_->port());
  client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 33554433\r\n\r\n");
  const std::string piece(size_t{1} << 20, 'x');
  for (int i = 0; i < 32; ++i) ASSERT_TRUE(client.send(piece)) << i;
  EXPECT_EQ(client.receive_response().status, 413);
}

TEST_F(FaultTest, AHalfCloseDuringAnAnswerEndsIt) {
  start();
  for (const char* path : {"/wait", "/stream"}) {
    TestClient client(server_->port());
    const int before = disconnects_.value();
    client.send("GET " + std::string(path) + " HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    ASSERT_TRUE(started_.wait_for(before + 1));
    client.half_close();
    EXPECT_TRUE(disconnects_.wait_for(before + 1)) << path;
    EXPECT_TRUE(client.receive_to_end());
  }
  TestClient client(server_->port());
  client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  client.half_close();
  EXPECT_EQ(client.receive_response().status, 200) << "an answer that was complete arrives";
}

TEST_F(FaultTest, WhereNoBodyIsNeededNoneIsRead) {
  start([](HttpServerOptions& options) {
    options.gate = [](const HttpRequest&) { return HttpAdmission{.max_body_bytes = 0}; };
  });
  for (const char* path : {"/", "/wait"})
    for (const char* body : {"Content-Length: 60000000\r\n\r\nabc", "Content-Length: 3\r\n\r\nabc",
                             "Transfer-Encoding: chunked\r\n\r\nfffff\r\nabc",
                             "Expect: 100-continue\r\nContent-Length: 9\r\n\r\n"}) {
      TestClient client(server_->port());
      const int before = started_.value();
      client.send("GET " + std::string(path) + " HTTP/1.1\r\nHost: h\r\n" + body);
      if (path == std::string("/wait")) {
        ASSERT_TRUE(started_.wait_for(before + 1));
        EXPECT_EQ(server_->ledger().memory()->bytes(MemoryKind::kHeader), HeadCharge::kBlock)
            << "the request's own headers";
        answer_waiting();
      }
      const auto answer = client.receive_response();
      EXPECT_EQ(answer.status, 200) << body;
      EXPECT_EQ(answer.headers.at("connection"), "close") << body;
      client.half_close();
      EXPECT_TRUE(client.receive_to_end());
    }
  TestClient none(server_->port());
  EXPECT_EQ(none.post("/", "").status, 200);
  EXPECT_EQ(none.get("/").status, 200) << "the connection goes on";
}

TEST_F(FaultTest, BodiesOfAllClientsTogetherAreBounded) {
  start([](HttpServerOptions& options) {
    options.num_threads = 1;  // two threads could refuse both at the same moment
    options.limits.total_body_bytes = 60'000;
    options.limits.client_body_share = 1;
  });
  const std::string head = "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 50000\r\n\r\n";
  TestClient first(server_->port());
  TestClient second(server_->port());
  first.send(head + std::string(40'000, 'a'));
  // Either body may arrive first; together they exceed the limit.
  second.send(head + std::string(40'000, 'b'));
  ASSERT_TRUE(eventually([&] {
    pollfd ends[] = {{first.fd(), POLLIN, 0}, {second.fd(), POLLIN, 0}};
    return ::poll(ends, 2, 10) > 0;
  }));
  pollfd end{first.fd(), POLLIN, 0};
  const bool first_refused = ::poll(&end, 1, 0) > 0;
  TestClient& refused = first_refused ? first : second;
  TestClient& other = first_refused ? second : first;
  const auto answer = refused.receive_response();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.headers.count("retry-after"), 1U);
  other.send(std::string(10'000, 'c'));
  EXPECT_EQ(other.receive_response().status, 200);
  for (int i = 0; i < 5; ++i) {  // answered or refused bodies no longer count
    TestClient later(server_->port());
    later.send(head + std::string(50'000, 'd'));
    EXPECT_EQ(later.receive_response().status, 200);
  }
}

}  // namespace
}  // namespace hadal::server
