// Starts a server on a free loopback port with a test's handler, and counts events.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/log.h"
#include "server/http/http_server.h"

namespace hadal::server::testing {

inline std::unique_ptr<HttpServer> start_server(HttpHandler handler,
                                                const std::function<void(HttpServerOptions&)>& change = {}) {
  HttpServerOptions options;
  options.port = 0;
  options.access_log = false;
  if (change) change(options);
  auto server = HttpServer::start(std::move(options), std::move(handler));
  EXPECT_TRUE(server.ok()) << (server.ok() ? "" : server.status().message);
  return server.ok() ? std::move(server).value() : nullptr;
}

inline HttpResponse text_response(std::string body, int status = 200) {
  HttpResponse response;
  response.status = status;
  response.content_type = "text/plain";
  response.body = std::move(body);
  return response;
}

// Counts events of other threads.
class Counter {
 public:
  void add(int n = 1) {
    const std::lock_guard lock(mutex_);
    value_ += n;
    changed_.notify_all();
  }
  int value() const {
    const std::lock_guard lock(mutex_);
    return value_;
  }
  // Returns false if `n` is not reached within a generous deadline.
  bool wait_for(int n) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return value_ >= n; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  int value_ = 0;
};

// Polls until `condition` is true; returns false after a generous deadline.
inline bool eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace hadal::server::testing
