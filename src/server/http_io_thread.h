// One I/O thread: its io_context, its task queue, its connections, its clock.
//
// Threads: post and request_stop may be called anywhere; everything else on the thread itself, or before it
// runs. Handlers run inside a Batch: their output is sent when the outermost Batch ends, with one system call
// per connection however many writes there were.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/http.h"
#include "server/http_server.h"

namespace boost::asio {
class io_context;
}

namespace hadal::server {

class HttpConnection;

// Shared by all connections of a server; immutable except for the atomics.
struct HttpTransport {
  HttpServerOptions options;
  HttpHandler handler;
  std::atomic<int64_t> num_connections{0};
  std::atomic<size_t> body_bytes{0};  // see HttpLimits::total_body_bytes
};

class HttpIoThread final : public IoThread, public std::enable_shared_from_this<HttpIoThread> {
 public:
  using Clock = std::chrono::steady_clock;

  HttpIoThread(int index, std::shared_ptr<HttpTransport> transport);
  ~HttpIoThread() override;

  void start();
  // Cuts all connections, drops all tasks and lets the thread end; join waits for that.
  void request_stop();
  void join();

  void post(std::function<void()> task) override;
  void post_after(std::chrono::milliseconds delay, std::function<void()> task) override;
  int index() const override { return index_; }
  bool is_current() const { return std::this_thread::get_id() == id_.load(std::memory_order_relaxed); }

  class Batch {
   public:
    explicit Batch(HttpIoThread& thread) : thread_(thread) { ++thread_.batch_depth_; }
    ~Batch() {
      if (thread_.batch_depth_ == 1) thread_.flush_dirty();
      --thread_.batch_depth_;
    }
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

   private:
    HttpIoThread& thread_;
  };

  // Flushes the connection at the end of the batch.
  void mark_dirty(std::shared_ptr<HttpConnection> connection) { dirty_.push_back(std::move(connection)); }

  void add(std::shared_ptr<HttpConnection> connection);
  void remove(HttpConnection& connection);
  int num_connections() const { return num_connections_.load(std::memory_order_relaxed); }
  // Closes connections after their answers, and idle ones now. Any thread.
  void drain_connections();
  bool draining() const { return draining_; }
  bool stopped() const { return stopped_; }

  HttpTransport& transport() { return *transport_; }
  boost::asio::io_context& context();
  // The current time, at most one sweep (half a second) old: for time-outs.
  Clock::time_point coarse_now() const { return now_; }
  const std::string& date();
  // One buffer for all reads of this thread, valid until the next suspension.
  std::vector<char>& scratch() { return scratch_; }

 private:
  struct Loop;

  void drain_queue();
  void flush_dirty();
  void sweep();
  void arm_sweep();
  void arm_delayed();
  void run_delayed();
  void shut_down();

  const int index_;
  const std::shared_ptr<HttpTransport> transport_;
  const std::unique_ptr<Loop> loop_;
  const std::chrono::milliseconds sweep_period_;
  std::thread thread_;
  std::atomic<std::thread::id> id_{};

  std::mutex mutex_;
  std::vector<std::function<void()>> queue_;  // guarded by mutex_
  bool closed_ = false;                       // guarded by mutex_; post drops tasks when true

  std::vector<std::function<void()>> running_;
  std::multimap<Clock::time_point, std::function<void()>> delayed_;
  std::vector<std::shared_ptr<HttpConnection>> connections_;
  std::vector<std::shared_ptr<HttpConnection>> sweeping_;
  std::vector<std::shared_ptr<HttpConnection>> dirty_;
  std::vector<std::shared_ptr<HttpConnection>> flushing_;
  std::atomic<int> num_connections_{0};
  int batch_depth_ = 0;
  bool draining_ = false;
  bool stopped_ = false;
  Clock::time_point now_ = Clock::now();
  std::time_t date_second_ = 0;
  std::string date_;
  std::vector<char> scratch_;
};

}  // namespace hadal::server
