// HttpIoThread is one I/O thread: its io_context, its task queue, its connections and its clock.
//
// Any thread may call post and request_stop; everything else is called on the thread itself, or before it
// runs. Handlers run inside a Batch: their output is sent when the outermost Batch ends, with one system call
// per connection however many writes there were.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/http/answer_counts.h"
#include "server/http/http.h"
#include "server/http/http_server.h"
#include "server/http/line_budget.h"
#include "server/http/longest_task.h"

namespace boost::asio {
class io_context;
}

namespace hadal::server {

class Exchange;
class HttpConnection;

// HttpTransport is shared by all connections of a server and immutable except for the atomics.
struct HttpTransport {
  HttpTransport(HttpServerOptions server_options, HttpHandler server_handler)
      : options(std::move(server_options)),
        handler(std::move(server_handler)),
        ledger(std::make_shared<HttpLedger>(options.memory)) {}

  const std::shared_ptr<RequestMemory>& memory() const { return ledger->memory(); }

  HttpServerOptions options;
  HttpHandler handler;
  const std::shared_ptr<HttpLedger> ledger;
  std::atomic<int64_t> num_connections{0};
  std::atomic<int64_t> num_places{0};  // num_connections and those that are on the way to their I/O thread
  LineBudget stranger_lines;           // of the access log
  AnswerCounts answers;
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
  // Tells an exchange on this thread that its handler has dropped it. Any thread may call it; it needs no
  // memory.
  void release(std::shared_ptr<Exchange> exchange) noexcept;
  bool is_current() const { return std::this_thread::get_id() == id_.load(std::memory_order_relaxed); }

  class Batch {
   public:
    explicit Batch(HttpIoThread& thread) : thread_(thread) {
      if (++thread_.batch_depth_ == 1) thread_.batch_began_ = Clock::now();
    }
    ~Batch() {
      if (thread_.batch_depth_ == 1) {
        thread_.flush_dirty();
        const Clock::time_point end = Clock::now();
        thread_.longest_.note(end, end - thread_.batch_began_);
      }
      --thread_.batch_depth_;
    }
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;

   private:
    HttpIoThread& thread_;
  };

  // Flushes the connection at the end of the batch.
  void mark_dirty(std::shared_ptr<HttpConnection> connection) { dirty_.push_back(std::move(connection)); }

  // Queues one call of the connection's take_turn(). It changes nothing if the connection already waits for
  // its turn. Between two turns the thread handles what has arrived on its other connections. Turns go
  // round-robin over clients, and round-robin over the connections of each client.
  void queue_turn(HttpConnection& connection);
  void leave_turns(HttpConnection& connection);  // may be repeated

  void add(std::shared_ptr<HttpConnection> connection);
  void remove(HttpConnection& connection);
  int num_connections() const { return num_connections_.load(std::memory_order_relaxed); }
  // These two keep the connections that wait for a request in order, the longest idle first. Both calls may
  // be repeated.
  void note_idle(HttpConnection& connection);
  void note_busy(HttpConnection& connection);
  // These two are for the thread that accepts connections. The first returns when the longest idle connection
  // became idle (max() if there is none, or if all idle ones have been told to close already). The second
  // closes that connection unless it is busy by then or has been idle for less than `min_idle`. Any thread
  // may call them.
  Clock::time_point idlest_since() const;
  void cut_idlest(std::chrono::milliseconds min_idle);
  // Closes idle connections now, and the others after their answers. Any thread may call it.
  void drain_connections();
  bool draining() const { return draining_; }
  bool stopped() const { return stopped_; }

  // Returns the duration of the longest Batch of the last one to two minutes. Any thread may call it.
  double longest_task_seconds() const {
    return std::chrono::duration<double>(longest_.longest(Clock::now())).count();
  }

  // Returns true if the access log may have one more of the lines that clients without a key may cause.
  bool take_stranger_line();

  HttpTransport& transport() { return *transport_; }
  boost::asio::io_context& context();
  // Returns the current time, at most one sweep (half a second) old, for time-outs.
  Clock::time_point coarse_now() const { return now_; }
  const std::string& date();
  // Returns one buffer for all reads of this thread, valid until the next suspension.
  std::vector<char>& scratch() { return scratch_; }

 private:
  struct Loop;

  void wake();
  void run_released();
  void publish_idlest();
  void arm_turns();
  void serve_turn();
  void drain_queue();
  void flush_dirty();
  void sweep();
  void tell_left_out_lines(Clock::time_point now);
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
  bool is_woken_ = false;                     // guarded by mutex_: drain_queue will run
  std::vector<std::function<void()>> queue_;  // guarded by mutex_
  bool closed_ = false;                       // guarded by mutex_; post drops tasks when true
  std::shared_ptr<Exchange> released_;        // guarded by mutex_; a list by Exchange::next_released_

  std::vector<std::function<void()>> running_;
  std::multimap<Clock::time_point, std::function<void()>> delayed_;
  std::vector<std::shared_ptr<HttpConnection>> connections_;
  std::vector<std::shared_ptr<HttpConnection>> sweeping_;
  std::vector<std::shared_ptr<HttpConnection>> dirty_;
  std::vector<std::shared_ptr<HttpConnection>> flushing_;
  std::list<HttpConnection*> idle_;  // all are in connections_
  // These connections wait for a turn, by client, in order. All are in connections_, and no list is empty.
  std::map<const ClientAccount*, std::list<HttpConnection*>> turns_;
  const ClientAccount* last_turn_ = nullptr;  // the client that has had the last turn; it may be gone
  bool turn_posted_ = false;
  std::atomic<int> num_connections_{0};
  // Counts the idle connections that no requested cut will close. It is one number instead of two, because
  // between the updates of two numbers the accepting thread would count connections that are gone, and
  // request cuts that find none.
  std::atomic<int> num_spare_{0};
  bool is_cutting_ =
      false;  // the next note_busy is that of a requested cut, which num_spare_ no longer counts
  std::atomic<Clock::rep> idlest_since_{std::numeric_limits<Clock::rep>::max()};
  LongestTask longest_;
  Clock::time_point batch_began_;
  int batch_depth_ = 0;
  bool draining_ = false;
  bool stopped_ = false;
  Clock::time_point now_ = Clock::now();
  std::time_t date_second_ = 0;
  std::string date_;
  std::vector<char> scratch_;
};

}  // namespace hadal::server
