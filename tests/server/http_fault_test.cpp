// Tests faults from outside: clients that are slow, vanish or pile up, descriptors that run out and shutdown
// at any moment. The server must notice them, continue and leak nothing.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/http_fault_fixture.h"

namespace hadal::server {
namespace {

using testing::eventually;
using testing::FaultTest;
using testing::start_server;
using testing::TestClient;
using testing::text_response;

const std::string kGetWait = "GET /wait HTTP/1.1\r\nHost: h\r\n\r\n";

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
    // This is more than is read ahead and less than the receive window, so the end of the data stays in the
    // kernel.
    std::string wall;
    while (wall.size() < 40 << 10) wall += "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    client.send(wall);
  }
  EXPECT_TRUE(disconnects_.wait_for(1));
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

}  // namespace
}  // namespace hadal::server
