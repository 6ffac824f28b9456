// Tests faults from outside: clients that are slow, vanish or pile up, descriptors that run out, shutdown at
// any moment. The server must notice them, continue and leak nothing.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
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

const std::string kGetWait = "GET /wait HTTP/1.1\r\nHost: h\r\n\r\n";

// Answers everything at once except /wait (kept and counted) and /stream (streams for ever, piece by piece).
class FaultTest : public ::testing::Test {
 protected:
  void start(const std::function<void(HttpServerOptions&)>& change = {}) {
    server_ =
        start_server([this](const std::shared_ptr<HttpExchange>& exchange) { handle(exchange); }, change);
  }
  void TearDown() override {
    release_waiting();
    if (server_) server_->stop();
  }
  void handle(const std::shared_ptr<HttpExchange>& exchange) {
    const std::string& path = exchange->request().path;
    if (path != "/wait" && path != "/stream") return exchange->respond(text_response("ok"));
    exchange->on_disconnect([this, exchange] {
      EXPECT_TRUE(exchange->disconnected());
      disconnects_.add();
    });
    if (path == "/stream") {
      exchange->start_stream({});
      stream(exchange);
      return started_.add();
    }
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(exchange);
    }
    started_.add();
  }
  static void stream(const std::shared_ptr<HttpExchange>& exchange) {
    if (exchange->disconnected()) return;
    if (exchange->writable()) exchange->write("piece");
    exchange->io().post_after(std::chrono::milliseconds(1), [exchange] { stream(exchange); });
  }
  void answer_waiting() {
    const std::lock_guard lock(mutex_);
    for (auto& each : waiting_) each->io().post([each] { each->respond(text_response("late")); });
    waiting_.clear();
  }
  void release_waiting() {
    const std::lock_guard lock(mutex_);
    waiting_.clear();
  }
  bool none_left() {
    return eventually([&] { return server_->num_connections() == 0; });
  }

  std::unique_ptr<HttpServer> server_;
  Counter started_;
  Counter disconnects_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<HttpExchange>> waiting_;
};

TEST_F(FaultTest, ARequestThatArrivesTooSlowlyIsCutOff) {
  start([](HttpServerOptions& options) { options.limits.read_timeout = std::chrono::seconds(1); });
  for (const std::string& begin :
       {std::string("GET / HTTP/1.1\r\nHost: h\r\nX"),
        std::string("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nhalf"),
        std::string("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5")}) {
    TestClient client(server_->port());
    ASSERT_TRUE(client.send(begin));
    std::string sent;
    while (client.send("0") && !client.receive_some(20) && !client.at_end()) {  // one byte from time to time
    }
    EXPECT_EQ(client.receive_response().status, 408);
    EXPECT_TRUE(client.receive_to_end());
  }
  EXPECT_TRUE(none_left());
}

TEST_F(FaultTest, AnIdleConnectionIsClosedAndABusyOneIsNot) {
  start([](HttpServerOptions& options) { options.limits.idle_timeout = std::chrono::seconds(1); });
  TestClient silent(server_->port());
  TestClient kept(server_->port());
  EXPECT_EQ(kept.get("/").status, 200);
  TestClient busy(server_->port());
  busy.send(kGetWait);
  ASSERT_TRUE(started_.wait_for(1));
  EXPECT_TRUE(silent.receive_to_end());
  EXPECT_TRUE(kept.receive_to_end());
  answer_waiting();
  EXPECT_EQ(busy.receive_response().body, "late");
  EXPECT_EQ(disconnects_.value(), 0);
}

TEST_F(FaultTest, AClientThatReadsNothingIsCutOff) {
  start([](HttpServerOptions& options) { options.limits.write_timeout = std::chrono::seconds(1); });
  const std::string big(size_t{32} << 20, 'x');
  auto server = start_server(
      [&](const std::shared_ptr<HttpExchange>& exchange) {
        exchange->on_disconnect([&] { disconnects_.add(); });
        exchange->start_stream({});
        exchange->write(big);
      },
      [](HttpServerOptions& options) { options.limits.write_timeout = std::chrono::seconds(1); });
  TestClient client(server->port(), /*ipv6=*/false, /*receive_buffer=*/8192);
  client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_TRUE(disconnects_.wait_for(1));
  EXPECT_TRUE(eventually([&] { return server->num_connections() == 0; }));
}

TEST_F(FaultTest, ClientsMayVanishInEveryPhase) {
  start();
  const std::string phases[] = {"", "GET /wai",
                                "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nhalf"};
  for (const bool reset : {false, true})
    for (const std::string& phase : phases)
      for (int i = 0; i < 20; ++i) {
        TestClient client(server_->port());
        ASSERT_TRUE(client.send(phase));
        if (reset) client.reset();
      }
  EXPECT_TRUE(none_left());
  EXPECT_EQ(started_.value(), 0);
  int expected = 0;
  for (const bool reset : {false, true})
    for (const std::string path : {"/wait", "/stream"})
      for (int i = 0; i < 20; ++i) {
        TestClient client(server_->port());
        ASSERT_TRUE(
            client.send("GET " + path + " HTTP/1.1\r\nHost: h\r\n\r\n" + (i % 2 == 0 ? "" : kGetWait)));
        ASSERT_TRUE(started_.wait_for(++expected));
        if (path == "/stream") {
          ASSERT_TRUE(client.receive_until("piece"));
        }
        if (reset) client.reset();
      }
  EXPECT_TRUE(disconnects_.wait_for(expected));
  EXPECT_TRUE(none_left());
  EXPECT_EQ(disconnects_.value(), expected);
  EXPECT_EQ(started_.value(), expected) << "a pipelined request is not started if its client has gone";
  EXPECT_EQ(TestClient(server_->port()).get("/").status, 200);
}

TEST_F(FaultTest, AVanishedClientIsNoticedBehindManyPipelinedRequests) {
  start([](HttpServerOptions& options) { options.limits.header_bytes = 4096; });
  {
    TestClient client(server_->port());
    client.send(kGetWait);
    ASSERT_TRUE(started_.wait_for(1));
    // This is more than is read ahead and less than the receive window, so the end stays in the kernel.
    std::string wall;
    while (wall.size() < 40 << 10) wall += "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    client.send(wall);
  }
  EXPECT_TRUE(disconnects_.wait_for(1));
  EXPECT_TRUE(none_left());
}

TEST_F(FaultTest, TooManyConnectionsGetA503) {
  start([](HttpServerOptions& options) {
    options.limits.max_connections = 4;
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

TEST_F(FaultTest, RunningOutOfDescriptorsIsTemporary) {
  start([](HttpServerOptions& options) { options.limits.min_idle = std::chrono::hours(1); });
  TestClient old(server_->port());
  EXPECT_EQ(old.get("/").status, 200);
  const int first = ::dup(0);  // the next free descriptor
  ::close(first);
  // The clients' sockets exist before the limit is lowered; the server's ends of them must wait.
  std::vector<int> sockets;
  for (int i = 0; i < 20; ++i) sockets.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  rlimit low = before;
  low.rlim_cur = static_cast<rlim_t>(sockets.back() + 4);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server_->port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const std::string request = "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
  for (const int fd : sockets) {
    EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::send(fd, request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
  }
  ASSERT_TRUE(eventually([] {
    const int spare = ::dup(0);
    if (spare >= 0) ::close(spare);
    return spare < 0;
  })) << "the server must run out of descriptors";
  EXPECT_EQ(old.get("/").status, 200) << "an accepted connection is served";
  EXPECT_LT(server_->num_connections(), 20);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  for (const int fd : sockets) {
    char buffer[512];
    EXPECT_GT(::recv(fd, buffer, sizeof(buffer), 0), 0) << "a connection that waited is served too";
    ::close(fd);
  }
}

TEST_F(FaultTest, StopAcceptingLetsRunningRequestsFinish) {
  start();
  TestClient idle(server_->port());
  EXPECT_EQ(idle.get("/").status, 200);
  TestClient busy(server_->port());
  busy.send(kGetWait + "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  TestClient half(server_->port());
  half.send("GET / HTTP/1.1\r\nHo");
  ASSERT_TRUE(started_.wait_for(1));
  ASSERT_TRUE(eventually([&] { return server_->num_connections() == 3; }));
  ASSERT_TRUE(eventually([&] { return half.server_has_read(); }));
  server_->stop_accepting();
  EXPECT_FALSE(TestClient(server_->port()).connected());
  EXPECT_TRUE(idle.receive_to_end());
  half.send("st: h\r\n\r\n");
  const auto finished = half.receive_response();
  EXPECT_EQ(finished.status, 200);
  EXPECT_EQ(finished.headers.at("connection"), "close");
  EXPECT_TRUE(half.receive_to_end());
  answer_waiting();
  const auto late = busy.receive_response();
  EXPECT_EQ(late.body, "late");
  EXPECT_EQ(late.headers.at("connection"), "close");
  EXPECT_TRUE(busy.receive_to_end());
  EXPECT_TRUE(busy.received.empty()) << "the pipelined request is not started";
  for (TestClient* client : {&idle, &busy, &half}) client->close();
  EXPECT_TRUE(none_left());
  EXPECT_EQ(disconnects_.value(), 0);
}

TEST_F(FaultTest, StopCutsEveryPhaseAndExchangesStayHarmless) {
  for (int round = 0; round < 10; ++round) {
    start();
    const int before = disconnects_.value();
    const int begun = started_.value();
    std::vector<std::unique_ptr<TestClient>> clients;
    for (const std::string& wire : {std::string(), std::string("GET / HT"),
                                    std::string("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nx"),
                                    kGetWait, std::string("GET /stream HTTP/1.1\r\nHost: h\r\n\r\n"),
                                    std::string("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")}) {
      clients.push_back(std::make_unique<TestClient>(server_->port()));
      clients.back()->send(wire);
    }
    ASSERT_TRUE(started_.wait_for(begun + 2));
    if (round % 2 == 0) server_->stop_accepting();
    server_->stop();
    server_->stop();
    EXPECT_EQ(server_->num_connections(), 0);
    EXPECT_EQ(disconnects_.value(), before + 2);
    for (auto& client : clients) EXPECT_TRUE(client->receive_to_end());
    server_.reset();
    const std::lock_guard lock(mutex_);
    for (const auto& exchange : waiting_) {  // outlives its server
      EXPECT_TRUE(exchange->disconnected());
      exchange->respond(text_response("too late"));
      exchange->io().post([] { FAIL() << "a task ran after the end"; });
    }
    waiting_.clear();
  }
}

TEST_F(FaultTest, StopRacesWithRequestsAndTasks) {
  for (int round = 0; round < 10; ++round) {
    start();
    std::atomic<bool> done{false};
    std::vector<std::thread> load;
    for (int i = 0; i < 3; ++i)
      load.emplace_back([&, port = server_->port()] {
        while (!done) {
          TestClient client(port);
          client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\nGET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
          if (!client.connected() || !client.receive_until("piece")) std::this_thread::yield();
        }
      });
    load.emplace_back([&, &io = server_->io_thread(0)] {
      while (!done) io.post([] {});
    });
    EXPECT_TRUE(started_.wait_for(started_.value() + 5));
    server_->stop();
    done = true;
    for (auto& thread : load) thread.join();
    EXPECT_EQ(disconnects_.value(), started_.value());
    server_.reset();
  }
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
  TestClient none(server_->port());
  EXPECT_EQ(none.post("/none", "discarded").status, 200);
  EXPECT_EQ(none.get("/none").status, 200) << "the connection goes on";
  none.send("POST /none HTTP/1.1\r\nHost: h\r\nContent-Length: 60000000\r\n\r\n");
  EXPECT_EQ(none.receive_response().status, 413);
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
  // Either may arrive first; together they exceed the limit.
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
