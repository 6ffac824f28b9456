// Holds a connection over a socket that is a pair of strings. The test's thread replaces its I/O thread, so
// that tests are deterministic and need neither a network nor a clock.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "server/http/http_connection.h"

namespace hadal::server::testing {

class FakeSocket final : public HttpConnection {
 public:
  FakeSocket(std::shared_ptr<HttpIoThread> thread, const std::string& peer)
      : HttpConnection(thread, {"test", ConnectionSlot(thread->transport().ledger->account(peer))},
                       /*refuse=*/std::nullopt) {}

  void start() override {
    const HttpIoThread::Batch batch(thread());
    on_open();
  }
  void receive(std::string_view data) {
    const HttpIoThread::Batch batch(thread());
    on_data(data);
  }
  void end() {
    const HttpIoThread::Batch batch(thread());
    on_end();
  }
  // The kernel accepts `n` more bytes.
  void take(size_t n) {
    const HttpIoThread::Batch batch(thread());
    room += n;
    const std::string_view data = std::exchange(blocked_, {});
    if (data.data() != nullptr) give(data);
  }

  size_t room = SIZE_MAX / 2;
  int num_sends = 0;
  int num_resumes = 0;
  std::string sent;
  bool shut = false;
  using HttpConnection::closed;
  using HttpConnection::wants_data;

 private:
  void give(std::string_view data) {
    const size_t n = std::min(room, data.size());
    if (n == 0) {
      blocked_ = data;
      return;
    }
    room -= n;
    sent.append(data.substr(0, n));
    on_sent(n);
  }
  void send(std::string_view data) override {
    ++num_sends;
    give(data);
  }
  void resume_reading() override { ++num_resumes; }
  void shut_down_writing() override { shut = true; }
  void close_socket() override {}
  bool peer_has_closed() override { return false; }

  std::string_view blocked_;
};

class HttpConnectionTest : public ::testing::Test {
 protected:
  HttpConnectionTest() {
    HttpServerOptions options;
    options.limits.stream_high_water = 1000;
    options.limits.header_bytes = 2000;
    options.memory = memory_;
    options.access_log = false;
    transport_ = std::make_shared<HttpTransport>(options, [this](std::shared_ptr<HttpExchange> exchange) {
      paths_.push_back(exchange->request().path);
      kept_.push_back(exchange);
      if (exchange->request().path == "/now") {
        HttpResponse response;
        response.body = "answer";
        return exchange->respond(std::move(response));
      }
      if (exchange->request().path == "/big") {
        HttpResponse response;
        response.body = std::string(1500, 'b');
        return exchange->respond(std::move(response));
      }
      waiting_.push_back(std::move(exchange));
    });
    // This thread is never started, because the test's thread does its work.
    thread_ = std::make_shared<HttpIoThread>(0, transport_);
    socket_ = connect();
  }
  ~HttpConnectionTest() override {
    {
      const HttpIoThread::Batch batch(*thread_);
      for (const auto& socket : sockets_) socket->cut("test ends");
    }
    waiting_.clear();
    kept_.clear();
    thread_->request_stop();  // tasks that never ran own the sockets too
  }

  std::shared_ptr<FakeSocket> connect(const std::string& peer = "peer:test") {
    sockets_.push_back(std::make_shared<FakeSocket>(thread_, peer));
    thread_->add(sockets_.back());
    sockets_.back()->start();
    return sockets_.back();
  }
  // Lets the thread do whatever is due; returns the number of events.
  size_t run() { return thread_->context().poll(); }
  void answer_waiting(size_t i = 0) {
    const HttpIoThread::Batch batch(*thread_);
    waiting_.at(i)->respond({});
  }

  static std::string get(const std::string& path) { return "GET " + path + " HTTP/1.1\r\nHost: h\r\n\r\n"; }
  static int count(const std::string& text, std::string_view part) {
    int n = 0;
    for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
    return n;
  }
  static int answers_of(const FakeSocket& socket) { return count(socket.sent, "HTTP/1.1 200"); }
  int num_answers() const { return answers_of(*socket_); }

  const std::shared_ptr<RequestMemory> memory_ = std::make_shared<RequestMemory>(size_t{16} << 20);
  std::shared_ptr<HttpTransport> transport_;
  std::shared_ptr<HttpIoThread> thread_;
  std::vector<std::shared_ptr<FakeSocket>> sockets_;
  std::shared_ptr<FakeSocket> socket_;
  std::vector<std::string> paths_;
  std::vector<std::shared_ptr<HttpExchange>> waiting_;
  // This keeps all exchanges, because dropping one notifies the thread, which would be another event.
  std::vector<std::shared_ptr<HttpExchange>> kept_;
};

}  // namespace hadal::server::testing
