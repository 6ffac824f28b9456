// Tests whole requests and answers over real sockets: the wire format, limits, CORS, ids and addresses.
#include "server/http/http_server.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/http_test_client.h"
#include "tests/server/http_test_server.h"

namespace hadal::server {
namespace {

using testing::ClientResponse;
using testing::Counter;
using testing::start_server;
using testing::TestClient;
using testing::text_response;

// Echoes the request.
void echo(const std::shared_ptr<HttpExchange>& exchange) {
  const HttpRequest& request = exchange->request();
  if (request.path == "/size") return exchange->respond(text_response(std::to_string(request.body.size())));
  if (request.path == "/throw") throw std::runtime_error("handler \"broke\"");
  if (request.path == "/drop") return;
  if (request.path == "/stream") {
    HttpResponse head;
    head.content_type = "text/event-stream";
    exchange->start_stream(std::move(head));
    exchange->write("one ");
    exchange->write("two");
    return exchange->finish();
  }
  exchange->respond(
      text_response(request.method + " " + request.path + "?" + request.query + " " + request.body));
}

class HttpServerTest : public ::testing::Test {
 protected:
  std::unique_ptr<HttpServer> server_ = start_server(echo, [](HttpServerOptions& options) {
    options.limits.header_bytes = 4096;
    options.limits.body_bytes = size_t{64} << 20;
  });
};

TEST_F(HttpServerTest, KeepsAConnectionAliveOverManyRequests) {
  TestClient client(server_->port());
  for (int i = 0; i < 100; ++i) {
    const auto response = client.post("/a%20b?q=1", "body " + std::to_string(i));
    ASSERT_EQ(response.status, 200);
    ASSERT_EQ(response.body, "POST /a b?q=1 body " + std::to_string(i));
    ASSERT_EQ(response.headers.at("content-type"), "text/plain");
    ASSERT_TRUE(response.headers.at("date").ends_with("GMT"));
    ASSERT_EQ(response.headers.count("connection"), 0u);
  }
  EXPECT_EQ(server_->num_connections(), 1);
}

TEST_F(HttpServerTest, AnswersARequestCutAtEveryByte) {
  const std::string wire =
      "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
  TestClient client(server_->port());
  for (size_t cut = 1; cut < wire.size(); ++cut) {
    ASSERT_TRUE(client.send(wire.substr(0, cut)));
    std::this_thread::yield();
    ASSERT_TRUE(client.send(wire.substr(cut)));
    ASSERT_EQ(client.receive_response().body, "POST /x? abcde") << cut;
  }
}

TEST_F(HttpServerTest, AnswersAPipelinedBurstInOrder) {
  TestClient client(server_->port());
  constexpr int kRequests = 2000;
  std::thread sender([&] {
    std::string burst;
    for (int i = 0; i < kRequests; ++i) burst += "GET /" + std::to_string(i) + " HTTP/1.1\r\nHost: h\r\n\r\n";
    client.send(burst);
  });
  for (int i = 0; i < kRequests; ++i)
    ASSERT_EQ(client.receive_response().body, "GET /" + std::to_string(i) + "? ");
  sender.join();
}

// The head of the stream is sent before the drain and promises to keep the connection.
TEST(HttpServerDrain, RequestsBehindAStreamThatEndsInADrainAreNotBegun) {
  Counter begun;
  std::shared_ptr<HttpExchange> stream;
  const auto server = start_server([&](const std::shared_ptr<HttpExchange>& exchange) {
    if (begun.value() == 0) {
      stream = exchange;
      exchange->start_stream({});
      exchange->write("first ");
    }
    begun.add();
  });
  TestClient client(server->port());
  client.send("GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(begun.wait_for(1));
  ASSERT_TRUE(client.receive_until("first "));
  server->stop_accepting();
  IoThread& io = stream->io();  // this thread has been told of the drain before it gets this task
  io.post([exchange = std::move(stream)] {
    exchange->write("last");
    exchange->finish();
  });
  EXPECT_EQ(client.receive_response().body, "first last");
  EXPECT_TRUE(client.receive_to_end());
  EXPECT_EQ(begun.value(), 1);
}

TEST_F(HttpServerTest, SupportsHttp10) {
  TestClient once(server_->port());
  once.send("GET /a HTTP/1.0\r\n\r\n");
  const auto response = once.receive_response();
  EXPECT_EQ(response.body, "GET /a? ");
  EXPECT_EQ(response.headers.at("connection"), "close");
  EXPECT_TRUE(once.receive_to_end());

  TestClient kept(server_->port());
  for (int i = 0; i < 3; ++i) {
    kept.send("GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_EQ(kept.receive_response().headers.at("connection"), "keep-alive");
  }

  TestClient streamed(server_->port());
  streamed.send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const auto stream = streamed.receive_response();
  EXPECT_FALSE(stream.chunked);
  EXPECT_EQ(stream.body, "one two");
  EXPECT_TRUE(streamed.at_end());
}

TEST_F(HttpServerTest, StreamsInChunksAndKeepsTheConnection) {
  TestClient client(server_->port());
  for (int i = 0; i < 3; ++i) {
    const auto response = client.get("/stream");
    EXPECT_TRUE(response.chunked);
    EXPECT_EQ(response.headers.count("content-length"), 0u);
    EXPECT_EQ(response.headers.at("content-type"), "text/event-stream");
    EXPECT_EQ(response.body, "one two");
  }
}

TEST_F(HttpServerTest, HeadHasTheHeadersAndNoBody) {
  TestClient client(server_->port());
  client.send("HEAD /abc HTTP/1.1\r\nHost: h\r\n\r\n");
  const auto head = client.receive_response(/*head_only=*/true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), std::to_string(std::string("HEAD /abc? ").size()));
  client.send("HEAD /stream HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(client.receive_response(/*head_only=*/true).status, 200);
  EXPECT_EQ(client.get("/next").body, "GET /next? ");
}

TEST_F(HttpServerTest, SendsContinueToClientsThatAskForIt) {
  TestClient client(server_->port());
  client.send("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.receive_response().status, 100);
  client.send("hi");
  EXPECT_EQ(client.receive_response().body, "POST /x? hi");
}

TEST_F(HttpServerTest, GeneratesRequestIdsAndEchoesValidOnes) {
  TestClient client(server_->port());
  EXPECT_EQ(client.get("/", "X-Request-Id: my-id_1\r\n").headers.at("x-request-id"), "my-id_1");
  std::set<std::string> minted;
  minted.insert(client.get("/").headers.at("x-request-id"));
  minted.insert(client.get("/").headers.at("x-request-id"));
  minted.insert(client.get("/", "X-Request-Id: with space\r\n").headers.at("x-request-id"));
  minted.insert(
      client.get("/", "X-Request-Id: " + std::string(200, 'a') + "\r\n").headers.at("x-request-id"));
  EXPECT_EQ(minted.size(), 4u);
  for (const auto& id : minted) EXPECT_EQ(id.size(), 32u);
}

TEST_F(HttpServerTest, AnswersPreflightAndAllowsOrigins) {
  TestClient client(server_->port());
  client.send(
      "OPTIONS /v1/x HTTP/1.1\r\nHost: h\r\nOrigin: http://page\r\nAccess-Control-Request-Method: POST\r\n"
      "Access-Control-Request-Headers: authorization, content-type\r\n\r\n");
  const auto preflight = client.receive_response();
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.headers.at("access-control-allow-origin"), "*");
  EXPECT_EQ(preflight.headers.at("access-control-allow-headers"), "authorization, content-type");
  EXPECT_NE(preflight.headers.at("access-control-allow-methods").find("POST"), std::string::npos);
  EXPECT_EQ(client.get("/", "Origin: http://page\r\n").headers.at("access-control-allow-origin"), "*");
  EXPECT_EQ(client.get("/").headers.count("access-control-allow-origin"), 0u);
}

TEST(HttpServerCors, APreflightListsTheMethodsThatTheGateAllows) {
  const auto server = start_server(echo, [](HttpServerOptions& options) {
    options.gate = [](const HttpRequest& request) {
      HttpAdmission out;
      out.refusal = HttpResponse{.status = request.path == "/x" ? 405 : 404};
      if (request.path == "/x") out.refusal->headers.emplace_back("Allow", "GET, POST");
      return out;
    };
  });
  const auto ask = [&](const std::string& path, const std::string& more) {
    TestClient client(server->port());
    client.send("OPTIONS " + path + " HTTP/1.1\r\nHost: h\r\nOrigin: http://page\r\n" + more + "\r\n");
    return client.receive_response();
  };
  const auto preflight = ask("/x", "Access-Control-Request-Method: POST\r\n");
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.headers.at("allow"), "GET, POST, HEAD, OPTIONS");
  EXPECT_EQ(preflight.headers.at("access-control-allow-methods"), "GET, POST, HEAD, OPTIONS");
  EXPECT_EQ(ask("/x", "").headers.count("access-control-allow-methods"), 0u);
  // Otherwise a page could not read the 404 that follows.
  EXPECT_EQ(ask("/y", "").headers.at("allow"), "GET, POST, PUT, DELETE, HEAD, OPTIONS");
}

TEST(HttpServerCors, CanBeDisabledOrLimitedToOneOrigin) {
  const auto off = start_server(echo, [](HttpServerOptions& options) { options.cors_allow_origin = ""; });
  TestClient client(off->port());
  client.send("OPTIONS /x HTTP/1.1\r\nHost: h\r\nOrigin: http://page\r\n\r\n");
  EXPECT_EQ(client.receive_response().body, "OPTIONS /x? ");
  EXPECT_EQ(client.get("/", "Origin: http://page\r\n").headers.count("access-control-allow-origin"), 0u);
  const auto narrow =
      start_server(echo, [](HttpServerOptions& options) { options.cors_allow_origin = "http://page"; });
  TestClient page(narrow->port());
  const auto response = page.get("/", "Origin: http://page\r\n");
  EXPECT_EQ(response.headers.at("access-control-allow-origin"), "http://page");
  EXPECT_EQ(response.headers.at("vary"), "Origin");
}

TEST_F(HttpServerTest, RefusesBadRequestsWithAJsonBodyAndCloses) {
  const struct {
    std::string wire;
    int status;
    const char* says;
  } cases[] = {
      {"nonsense\r\n\r\n", 400, "malformed"},
      {"GET / HTTP/1.1\r\n\r\n", 400, "Host"},
      {"GET /" + std::string(5000, 'a') + " HTTP/1.1\r\n", 431, "4096"},
      {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 67108865\r\n\r\n", 413, "67108864"},
      {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "chunked"},
  };
  for (const auto& c : cases) {
    TestClient client(server_->port());
    client.send(c.wire);
    const auto response = client.receive_response();
    EXPECT_EQ(response.status, c.status);
    EXPECT_EQ(response.headers.at("connection"), "close");
    EXPECT_EQ(response.headers.at("content-type"), "application/json");
    EXPECT_TRUE(response.body.starts_with(R"({"object":"error","message":")")) << response.body;
    EXPECT_NE(response.body.find("\"param\":null,\"code\":" + std::to_string(c.status) + ",\"error\":{"),
              std::string::npos)
        << response.body;
    EXPECT_NE(response.body.find(c.says), std::string::npos) << response.body;
    EXPECT_TRUE(client.receive_to_end());
  }
}

TEST_F(HttpServerTest, AClientInTheMiddleOfAnUploadCanReadTheRefusal) {
  TestClient client(server_->port());
  client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\n\r\n");
  const std::string block(1 << 20, 'x');
  for (int i = 0; i < 16; ++i)
    if (!client.send(block)) break;
  EXPECT_EQ(client.receive_response().status, 413);
}

TEST_F(HttpServerTest, AcceptsABodyOf64MiB) {
  TestClient client(server_->port());
  std::string body(size_t{64} << 20, 'x');
  EXPECT_EQ(client.post("/size", body).body, "67108864");
  // The server also returns a body of that size.
  for (size_t i = 0; i < body.size(); i += 997) body[i] = static_cast<char>('a' + i % 26);
  std::thread sender([&] {
    client.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4000000\r\n");
    client.send(body);
    client.send("\r\n0\r\n\r\n");
  });
  const auto response = client.receive_response();
  sender.join();
  EXPECT_TRUE(response.body == "POST /? " + body);
}

TEST_F(HttpServerTest, AHandlerThatThrowsOrNeverAnswersGives500) {
  TestClient client(server_->port());
  const auto thrown = client.get("/throw");
  EXPECT_EQ(thrown.status, 500);
  EXPECT_NE(thrown.body.find("internal error"), std::string::npos) << thrown.body;
  EXPECT_EQ(client.get("/drop").status, 500);
  EXPECT_EQ(server_->ledger().refused(Refusal::kMemory), 0) << "a fault is no refusal";
  EXPECT_EQ(client.get("/fine").status, 200);
}

TEST(HttpServerHeaders, ResponseHeadersCannotBeInjected) {
  const auto server = start_server([](const std::shared_ptr<HttpExchange>& exchange) {
    HttpResponse response = text_response("x");
    response.content_type = "text/plain\r\nEvil-A: 1";
    response.headers = {{"Good", "a\r\nEvil-B: 1\r\n\r\nbody"},
                        {"Evil-C: 1\r\nX", "v"},
                        {"Content-Length", "100"},
                        {"", "v"},
                        {"Tabs", "a\tb"}};
    exchange->respond(std::move(response));
  });
  TestClient client(server->port());
  const auto response = client.get("/");
  EXPECT_EQ(response.body, "x");
  EXPECT_EQ(response.headers.at("good"), "a  Evil-B: 1    body");
  EXPECT_EQ(response.headers.at("tabs"), "a\tb");
  for (const auto& [name, value] : response.headers) EXPECT_FALSE(name.starts_with("evil")) << name;
  EXPECT_EQ(client.get("/").status, 200);
}

TEST(HttpServerAddresses, ListensOnIpv6) {
  HttpServerOptions options;
  options.host = "::";
  options.port = 0;
  options.access_log = false;
  auto server = HttpServer::start(options, echo);
  if (!server.ok()) GTEST_SKIP() << "no IPv6 here: " << server.status().message;
  TestClient v6((*server)->port(), /*ipv6=*/true);
  if (!v6.connected()) GTEST_SKIP() << "no IPv6 loopback here";
  EXPECT_EQ(v6.get("/six").body, "GET /six? ");
  TestClient v4((*server)->port());
  EXPECT_EQ(v4.get("/four").body, "GET /four? ");
}

TEST(HttpServerAddresses, ErrorsNameTheWrongHostOrPort) {
  const auto first = start_server(echo);
  HttpServerOptions options;
  options.access_log = false;
  options.port = first->port();
  auto taken = HttpServer::start(options, echo);
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.status().code, StatusCode::kResourceExhausted);
  EXPECT_NE(taken.status().message.find(std::to_string(first->port())), std::string::npos);
  EXPECT_NE(taken.status().message.find("in use"), std::string::npos);
  options.host = "no.such.host.invalid";
  auto unknown = HttpServer::start(options, echo);
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code, StatusCode::kInvalidArgument);
  EXPECT_NE(unknown.status().message.find("no.such.host.invalid"), std::string::npos);
  options.host = "127.0.0.1";
  options.num_threads = 0;
  EXPECT_FALSE(HttpServer::start(options, echo).ok());
}

TEST(HttpServerAddresses, ThePortIsFreeAtOnceAfterAStop) {
  uint16_t port = 0;
  for (int round = 0; round < 3; ++round) {
    const auto server = start_server(echo, [&](HttpServerOptions& options) { options.port = port; });
    ASSERT_NE(server, nullptr);
    port = server->port();
    TestClient client(port);
    EXPECT_EQ(client.get("/").status, 200);
  }
}

TEST(HttpServerThreads, SpreadsConnectionsEvenly) {
  constexpr int kThreads = 4;
  std::array<std::atomic<int>, kThreads> requests{};
  const auto server = start_server(
      [&](const std::shared_ptr<HttpExchange>& exchange) {
        requests[static_cast<size_t>(exchange->io().index())].fetch_add(1);
        exchange->respond(text_response("ok"));
      },
      [](HttpServerOptions& options) { options.num_threads = kThreads; });
  EXPECT_EQ(server->num_threads(), kThreads);
  for (int i = 0; i < 4 * kThreads; ++i) EXPECT_EQ(TestClient(server->port()).get("/").status, 200);
  for (const auto& count : requests) EXPECT_EQ(count.load(), 4);
}

}  // namespace
}  // namespace hadal::server
