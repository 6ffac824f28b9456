// Tests that handshakes of TLS are computed one at a time, and that other connections are served between
// them. The test's thread acts as the I/O thread and handles one event after another, so no clock is needed.
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "server/http/http_connection.h"
#include "tests/server/tls_files.h"

namespace hadal::server {
namespace {

// PairedClient is at one end of a pair of sockets, whose other end is a connection of the thread.
class PairedClient {
 public:
  PairedClient(SSL_CTX* context, int fd) : fd_(fd), ssl_(SSL_new(context), &SSL_free) {
    SSL_set_fd(ssl_.get(), fd);
  }
  ~PairedClient() { ::close(fd_); }
  PairedClient(const PairedClient&) = delete;
  PairedClient& operator=(const PairedClient&) = delete;

  // Goes on with the handshake as far as it can; the first call sends the greeting.
  bool shake_hands() { return SSL_connect(ssl_.get()) == 1; }
  bool has_answer() const {
    char byte;
    return ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
  }
  void send(const std::string& text) {
    EXPECT_EQ(SSL_write(ssl_.get(), text.data(), static_cast<int>(text.size())),
              static_cast<int>(text.size()));
  }
  std::string receive() {
    char buffer[4096];
    const int n = SSL_read(ssl_.get(), buffer, sizeof(buffer));
    return {buffer, static_cast<size_t>(std::max(n, 0))};
  }

 private:
  const int fd_;
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
};

class HttpTlsTurnsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    HttpServerOptions options;
    options.access_log = false;
    options.tls_keyfile = files_.path("key.pem");
    options.tls_certfile = files_.path("cert.pem");
    auto tls = load_tls(options);
    ASSERT_TRUE(tls.ok());
    tls_ = std::move(tls).value();
    transport_ = std::make_shared<HttpTransport>(
        options, [](const std::shared_ptr<HttpExchange>& exchange) { exchange->respond({}); });
    thread_ = std::make_shared<HttpIoThread>(0, transport_);  // never started
  }
  void TearDown() override {
    {
      const HttpIoThread::Batch batch(*thread_);
      for (const auto& connection : connections_) connection->cut("test ends");
    }
    thread_->context().poll();
  }

  std::unique_ptr<PairedClient> connect(const std::string& peer) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    connections_.push_back(make_tls_connection(
        thread_, ends[1], {"test", ConnectionSlot(transport_->ledger->account(peer))}, std::nullopt, tls_));
    thread_->add(connections_.back());
    connections_.back()->start();
    return std::make_unique<PairedClient>(context_.get(), ends[0]);
  }
  // Returns clients that have sent their greetings to a thread which already waits for them.
  std::vector<std::unique_ptr<PairedClient>> greet(int n, const std::string& peer) {
    std::vector<std::unique_ptr<PairedClient>> out;
    for (int i = 0; i < n; ++i) out.push_back(connect(peer));
    thread_->context().poll();
    for (const auto& client : out) EXPECT_FALSE(client->shake_hands());
    return out;
  }
  static int64_t num_answered(const std::vector<std::unique_ptr<PairedClient>>& clients) {
    return std::count_if(clients.begin(), clients.end(),
                         [](const auto& client) { return client->has_answer(); });
  }
  // Handles events until the client has something to read. Returns false if nothing is left to handle.
  bool run_until_answered(const PairedClient& client) {
    while (!client.has_answer())
      if (thread_->context().poll_one() == 0) return false;
    return true;
  }
  void finish(PairedClient& client) {
    for (int i = 0; i < 100 && !client.shake_hands(); ++i) thread_->context().poll();
    ASSERT_TRUE(client.shake_hands());
    thread_->context().poll();
  }

  const testing::TlsFiles files_;
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_{SSL_CTX_new(TLS_client_method()),
                                                                   &SSL_CTX_free};
  std::shared_ptr<TlsContext> tls_;
  std::shared_ptr<HttpTransport> transport_;
  std::shared_ptr<HttpIoThread> thread_;
  std::vector<std::shared_ptr<HttpConnection>> connections_;
};

constexpr const char* kGet = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";

TEST_F(HttpTlsTurnsTest, ARequestWaitsForOneHandshakeAtMost) {
  const auto established = connect("peer:a");
  finish(*established);
  established->send(kGet);
  thread_->context().poll();
  EXPECT_NE(established->receive().find("200 OK"), std::string::npos);
  const auto others = greet(30, "peer:a");
  established->send(kGet);
  ASSERT_TRUE(run_until_answered(*established));
  EXPECT_LE(num_answered(others), 1);
  EXPECT_NE(established->receive().find("200 OK"), std::string::npos);
  thread_->context().poll();
  EXPECT_EQ(num_answered(others), 30);
  for (const auto& other : others) {
    finish(*other);
    other->send(kGet);
    thread_->context().poll();
    EXPECT_NE(other->receive().find("200 OK"), std::string::npos);
  }
}

TEST_F(HttpTlsTurnsTest, AHandshakeWaitsForOneOfEachOtherClient) {
  const auto one = connect("peer:one");
  const auto many = greet(30, "peer:many");
  EXPECT_FALSE(one->shake_hands());
  ASSERT_TRUE(run_until_answered(*one));
  EXPECT_LE(num_answered(many), 2);
  thread_->context().poll();
  for (const auto& client : many) EXPECT_TRUE(client->shake_hands());
  EXPECT_TRUE(one->shake_hands());
  one->send(kGet);
  thread_->context().poll();
  EXPECT_NE(one->receive().find("200 OK"), std::string::npos);
}

TEST_F(HttpTlsTurnsTest, ConnectionsMayEndWhileTheirHandshakesWait) {
  auto clients = greet(10, "peer:a");
  for (int i = 0; i < 25; ++i) thread_->context().poll_one();
  {
    const HttpIoThread::Batch batch(*thread_);
    for (size_t i = 0; i < 5; ++i) connections_[i]->cut("broken");
  }
  clients.erase(clients.begin(), clients.begin() + 5);
  thread_->context().poll();
  EXPECT_EQ(num_answered(clients), 5);
  for (const auto& client : clients) finish(*client);
  EXPECT_EQ(thread_->num_connections(), 5);
}

}  // namespace
}  // namespace hadal::server
