// Tests TLS end to end, with certificates made here by OpenSSL.
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/http_test_client.h"
#include "tests/server/http_test_server.h"
#include "tests/server/tls_files.h"

namespace hadal::server {
namespace {

using testing::Counter;
using testing::start_server;
using testing::TestClient;
using testing::text_response;

class TlsClient final : public TestClient {
 public:
  explicit TlsClient(uint16_t port, int max_version = 0) : TestClient(port) {
    context_.reset(SSL_CTX_new(TLS_client_method()));
    if (max_version != 0) {
      SSL_CTX_set_max_proto_version(context_.get(), max_version);
      SSL_CTX_set_security_level(context_.get(), 0);
    }
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), fd());
    ready_ = SSL_connect(ssl_.get()) == 1;
  }
  bool ready() const { return ready_; }
  std::string version() const { return SSL_get_version(ssl_.get()); }
  bool send(std::string_view data) override {
    while (!data.empty()) {
      const int n =
          SSL_write(ssl_.get(), data.data(), static_cast<int>(std::min<size_t>(data.size(), 1 << 20)));
      if (n <= 0) return false;
      data.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // Changes the keys that this client sends with; returns false once the server has gone.
  bool change_keys() {
    return SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1 && SSL_do_handshake(ssl_.get()) == 1;
  }
  // Returns true if the server sent close_notify, so that the answer is known to be complete.
  bool clean_end() const { return (SSL_get_shutdown(ssl_.get()) & SSL_RECEIVED_SHUTDOWN) != 0; }

 protected:
  bool wait_readable(int deadline_ms) override {
    return SSL_pending(ssl_.get()) > 0 || TestClient::wait_readable(deadline_ms);
  }
  ssize_t receive_raw(char* buffer, size_t size) override {
    return SSL_read(ssl_.get(), buffer, static_cast<int>(size));
  }

 private:
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_{nullptr, &SSL_CTX_free};
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_{nullptr, &SSL_free};
  bool ready_ = false;
};

class HttpTlsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::write_key(files_.key(), path("locked.pem"), "open sesame");
    testing::write_key(testing::make_key().get(), path("other.pem"));
    std::ofstream(path("garbage.pem")) << "not PEM\n";
    std::ofstream(path("empty.pem")).flush();
  }
  std::string path(const std::string& name) const { return files_.path(name); }

  std::unique_ptr<HttpServer> start(const std::function<void(HttpServerOptions&)>& change = {}) {
    return start_server([this](const std::shared_ptr<HttpExchange>& exchange) { handle(exchange); },
                        [&](HttpServerOptions& options) {
                          options.tls_keyfile = path("key.pem");
                          options.tls_certfile = path("cert.pem");
                          if (change) change(options);
                        });
  }
  void handle(const std::shared_ptr<HttpExchange>& exchange) {
    if (exchange->request().path == "/stream") {
      exchange->on_disconnect([this] { disconnects_.add(); });
      exchange->start_stream({});
      return stream(exchange, 0);
    }
    if (exchange->request().path == "/wait") {
      exchange->on_disconnect([this, exchange] { disconnects_.add(); });
      return started_.add();
    }
    exchange->respond(text_response(exchange->request().body));
  }
  static void stream(const std::shared_ptr<HttpExchange>& exchange, int i) {
    if (i == 1000) return exchange->finish();
    exchange->write("piece ");
    exchange->io().post([exchange, i] { stream(exchange, i + 1); });
  }

  const testing::TlsFiles files_;
  Counter started_;
  Counter disconnects_;
};

TEST_F(HttpTlsTest, AnswersStreamsAndKeepsAlive) {
  const auto server = start();
  TlsClient client(server->port());
  ASSERT_TRUE(client.ready());
  EXPECT_EQ(client.version(), "TLSv1.3");
  std::string body(3 << 20, 'x');
  for (size_t i = 0; i < body.size(); i += 991) body[i] = static_cast<char>('a' + i % 26);
  EXPECT_TRUE(client.post("/", body).body == body);
  EXPECT_EQ(client.get("/stream").body.size(), 6000u);
  EXPECT_EQ(client.post("/", "again").body, "again");
  client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client.receive_response().status, 200);
  EXPECT_EQ(client.receive_response().headers.at("connection"), "close");
  EXPECT_TRUE(client.receive_to_end());
  EXPECT_TRUE(client.clean_end());
}

TEST_F(HttpTlsTest, AClientThatOnlyChangesKeysIsCutOff) {
  const auto server = start();
  TlsClient honest(server->port());
  ASSERT_TRUE(honest.ready());
  for (int round = 0; round < 4; ++round) {  // data between the changes, so any number of them is allowed
    for (int i = 0; i < 30; ++i) ASSERT_TRUE(honest.change_keys());
    EXPECT_EQ(honest.post("/", "data").body, "data");
  }
  TlsClient hostile(server->port());
  ASSERT_TRUE(hostile.ready());
  EXPECT_EQ(hostile.post("/", "data").body, "data");
  for (int i = 0; i < 33; ++i) {
    if (!hostile.change_keys()) break;
  }
  EXPECT_TRUE(hostile.receive_to_end());
}

TEST_F(HttpTlsTest, AnAnswerUntilCloseEndsWithCloseNotify) {
  const auto server = start();
  TlsClient client(server->port());
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.receive_response().body.size(), 6000u);
  EXPECT_TRUE(client.clean_end());
}

TEST_F(HttpTlsTest, RefusesVersionsOlderThan12) {
  const auto server = start();
  TlsClient modern(server->port(), TLS1_2_VERSION);
  EXPECT_TRUE(modern.ready());
  EXPECT_EQ(modern.version(), "TLSv1.2");
  EXPECT_EQ(modern.post("/", "x").body, "x");
  EXPECT_FALSE(TlsClient(server->port(), TLS1_1_VERSION).ready());
}

TEST_F(HttpTlsTest, ServesManyClientsAtOnce) {
  const auto server = start();
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        TlsClient client(server->port());
        good += client.get("/stream").body.size() == 6000 ? 1 : 0;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good, 80);
}

TEST_F(HttpTlsTest, ClientsMayVanishInEveryPhase) {
  const auto server = start();
  {
    TestClient silent(server->port());
    TestClient plain(server->port());
    plain.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    EXPECT_TRUE(plain.receive_to_end()) << "a client without TLS is disconnected";
    TestClient half(server->port());
    half.send(std::string("\x16\x03\x01\x02\x00\x01", 6));
  }
  for (const bool reset : {false, true}) {
    TlsClient waiting(server->port());
    waiting.send("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
    ASSERT_TRUE(started_.wait_for(reset ? 2 : 1));
    reset ? waiting.reset() : waiting.close();
  }
  EXPECT_TRUE(disconnects_.wait_for(2));
  EXPECT_TRUE(testing::eventually([&] { return server->num_connections() == 0; }));
}

TEST_F(HttpTlsTest, ASilentHandshakeTimesOut) {
  const auto server =
      start([](HttpServerOptions& options) { options.limits.read_timeout = std::chrono::seconds(1); });
  TestClient silent(server->port());
  EXPECT_TRUE(silent.receive_to_end());
}

TEST_F(HttpTlsTest, AfterARefusalAClientCannotSendWithoutEnd) {
  const auto server = start([](HttpServerOptions& options) {
    options.gate = [](const HttpRequest&) {
      HttpAdmission out;
      out.refusal = text_response("no", 401);
      return out;
    };
  });
  TlsClient client(server->port());
  client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000\r\n\r\n");
  const std::string piece(size_t{1} << 20, 'x');
  int sent = 0;
  while (sent < 200 && client.send(piece)) ++sent;
  EXPECT_LT(sent, 200);
  EXPECT_TRUE(testing::eventually([&] { return server->num_connections() == 0; }));
}

TEST_F(HttpTlsTest, StopsInEveryPhase) {
  for (int round = 0; round < 5; ++round) {
    const auto server = start();
    const int begun = started_.value();
    TestClient silent(server->port());
    TlsClient idle(server->port());
    EXPECT_EQ(idle.post("/", "x").body, "x");
    TlsClient waiting(server->port());
    waiting.send("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
    TlsClient streaming(server->port());
    streaming.send("GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
    ASSERT_TRUE(started_.wait_for(begun + 1));
    server->stop();
    EXPECT_EQ(server->num_connections(), 0);
    EXPECT_TRUE(silent.receive_to_end());
    EXPECT_TRUE(idle.receive_to_end());
  }
}

TEST_F(HttpTlsTest, AKeyWithAPasswordNeedsIt) {
  const auto server = start([&](HttpServerOptions& options) {
    options.tls_keyfile = path("locked.pem");
    options.tls_keyfile_password = "open sesame";
  });
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(TlsClient(server->port()).post("/", "x").body, "x");
}

TEST_F(HttpTlsTest, ErrorsNameTheWrongFile) {
  const struct {
    std::string key, certificate, password, says;
  } cases[] = {
      {path("none.pem"), path("cert.pem"), "", "none.pem"},
      {path("key.pem"), path("none.pem"), "", "none.pem"},
      {path("key.pem"), "", "", "certificate"},
      {"", path("cert.pem"), "", "key"},
      {path("garbage.pem"), path("cert.pem"), "", "garbage.pem"},
      {path("key.pem"), path("garbage.pem"), "", "garbage.pem"},
      {path("key.pem"), path("empty.pem"), "", "empty.pem"},
      {path("other.pem"), path("cert.pem"), "", "does not belong"},
      {path("locked.pem"), path("cert.pem"), "", "locked.pem"},
      {path("locked.pem"), path("cert.pem"), "wrong", "locked.pem"},
  };
  for (const auto& c : cases) {
    HttpServerOptions options;
    options.port = 0;
    options.tls_keyfile = c.key;
    options.tls_certfile = c.certificate;
    options.tls_keyfile_password = c.password;
    const auto server = HttpServer::start(options, [](const std::shared_ptr<HttpExchange>&) {});
    ASSERT_FALSE(server.ok()) << c.says;
    const bool both_are_named = !c.key.empty() && !c.certificate.empty();
    EXPECT_EQ(server.status().code, both_are_named ? StatusCode::kDataLoss : StatusCode::kInvalidArgument);
    EXPECT_NE(server.status().message.find(c.says), std::string::npos) << server.status().message;
  }
}

}  // namespace
}  // namespace hadal::server
