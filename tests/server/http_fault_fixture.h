// FaultTest is a server whose handlers may keep a request or stream for ever, for tests of faults and limits.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/server/http_test_client.h"
#include "tests/server/http_test_server.h"

namespace hadal::server::testing {

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

}  // namespace hadal::server::testing
