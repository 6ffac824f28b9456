#include "server/http/http_io_thread.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <new>
#include <utility>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "server/http/http_connection.h"
#include "server/http/http_message.h"

namespace hadal::server {
namespace {

namespace asio = boost::asio;
constexpr size_t kScratchBytes = 64 << 10;

std::chrono::milliseconds sweep_period(const HttpLimits& limits) {
  const std::chrono::milliseconds shortest =
      std::min({limits.read_timeout, limits.idle_timeout, limits.write_timeout});
  return std::clamp(shortest / 4, std::chrono::milliseconds(5), std::chrono::milliseconds(500));
}

// A task that throws has a bug or has run out of memory; the others continue.
void run_task(std::function<void()>& task) {
  try {
    const MemoryReserve::Pause own;  // tasks are the work of requests
    task();
  } catch (const std::exception& error) {
    log_error("io_task_failed error=\"{}\"", error.what());
  }
  task = nullptr;
}

}  // namespace

struct HttpIoThread::Loop {
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  asio::steady_timer sweep_timer{context};
  asio::steady_timer delay_timer{context};
};

HttpIoThread::HttpIoThread(int index, std::shared_ptr<HttpTransport> transport)
    : index_(index),
      transport_(std::move(transport)),
      loop_(std::make_unique<Loop>()),
      sweep_period_(sweep_period(transport_->options.limits)),
      scratch_(kScratchBytes) {}

HttpIoThread::~HttpIoThread() {
  request_stop();
  join();
}

asio::io_context& HttpIoThread::context() {
  return loop_->context;
}

void HttpIoThread::start() {
  thread_ = std::thread([this] {
    const MemoryReserve::Scope reserve;  // used for the thread itself and for error answers
    id_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    const std::string name = fmt::format("hadal-io-{}", index_);
    pthread_setname_np(pthread_self(), name.c_str());
    for (;;) {
      try {
        // The timers are armed after an exception as well, because it may have come between a timer's handler
        // and its next wait.
        arm_sweep();
        arm_delayed();
        loop_->context.run();
        return;
      } catch (const std::exception& error) {
        log_error("io_thread_error thread={} error=\"{}\"", index_, error.what());
      }
    }
  });
}

void HttpIoThread::request_stop() {
  auto dropped = std::make_shared<std::vector<std::function<void()>>>();
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    std::swap(*dropped, queue_);
  }
  if (!thread_.joinable()) return run_released();  // it was never started, so the caller does the work
  asio::post(loop_->context, [this, dropped] {
    dropped->clear();  // here, because the objects that the tasks own belong to this thread
    run_released();
    shut_down();
  });
}

void HttpIoThread::join() {
  if (thread_.joinable()) thread_.join();
}

void HttpIoThread::shut_down() {
  stopped_ = true;
  {
    const Batch batch(*this);
    const auto connections = connections_;
    for (const auto& connection : connections) connection->cut("server stops");
  }
  tell_left_out_lines(Clock::time_point::max());
  std::exchange(delayed_, {});
  loop_->delay_timer.cancel();
  loop_->sweep_timer.cancel();
  loop_->work.reset();
}

void HttpIoThread::post(std::function<void()> task) {
  const MemoryReserve::Scope reserve;  // all requests share the queue
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    queue_.push_back(std::move(task));
    if (std::exchange(is_woken_, true)) return;
  }
  wake();
}

void HttpIoThread::release(std::shared_ptr<Exchange> exchange) noexcept {
  const MemoryReserve::Scope reserve;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    exchange->next_released_ = std::move(released_);
    released_ = std::move(exchange);
    if (std::exchange(is_woken_, true)) return;
  }
  wake();
}

void HttpIoThread::wake() {
  try {
    asio::post(loop_->context, [this] { drain_queue(); });
  } catch (const std::bad_alloc&) {
    const std::lock_guard lock(mutex_);
    is_woken_ = false;  // the next post, or the sweep, tries again
  }
}

void HttpIoThread::run_released() {
  std::shared_ptr<Exchange> first;
  {
    const std::lock_guard lock(mutex_);
    first = std::move(released_);
  }
  while (first) {
    const auto exchange = std::exchange(first, std::move(first->next_released_));
    exchange->released();
  }
}

void HttpIoThread::drain_queue() {
  {
    const std::lock_guard lock(mutex_);
    std::swap(queue_, running_);
    is_woken_ = false;
  }
  const Batch batch(*this);
  for (auto& task : running_) run_task(task);
  running_.clear();
  run_released();
}

void HttpIoThread::post_after(std::chrono::milliseconds delay, std::function<void()> task) {
  if (stopped_) return;
  const auto at = delayed_.emplace(Clock::now() + delay, std::move(task));
  if (at == delayed_.begin()) arm_delayed();
}

void HttpIoThread::arm_delayed() {
  if (delayed_.empty() || stopped_) return;
  loop_->delay_timer.expires_at(delayed_.begin()->first);
  loop_->delay_timer.async_wait([this](const boost::system::error_code& ec) {
    if (!ec && !stopped_) run_delayed();
  });
}

void HttpIoThread::run_delayed() {
  {
    const Batch batch(*this);
    const auto now = Clock::now();
    while (!delayed_.empty() && delayed_.begin()->first <= now) {
      auto node = delayed_.extract(delayed_.begin());
      run_task(node.mapped());
    }
  }
  arm_delayed();
}

void HttpIoThread::flush_dirty() {
  // A flush may find that a client has gone. The end of its request may then mark further connections.
  while (!dirty_.empty()) {
    std::swap(dirty_, flushing_);
    for (auto& connection : flushing_) {
      try {
        connection->flush();
      } catch (const std::exception& error) {
        connection->on_fault(error);
      }
    }
    flushing_.clear();
  }
}

void HttpIoThread::queue_turn(HttpConnection& connection) {
  const MemoryReserve::Scope reserve;  // all connections share the turns
  std::list<HttpConnection*>& own = connection.turn_place_;
  if (own.empty()) return;
  std::list<HttpConnection*>& of_client = turns_[connection.peer_.slot.account().get()];
  of_client.splice(of_client.end(), own, own.begin());
  arm_turns();
}

void HttpIoThread::leave_turns(HttpConnection& connection) {
  std::list<HttpConnection*>& own = connection.turn_place_;
  if (!own.empty()) return;
  const auto of_client = turns_.find(connection.peer_.slot.account().get());
  own.splice(own.end(), of_client->second, connection.turn_at_);
  if (of_client->second.empty()) turns_.erase(of_client);
}

void HttpIoThread::arm_turns() {
  if (turns_.empty() || turn_posted_) return;
  try {
    asio::post(loop_->context, [this] { serve_turn(); });
    turn_posted_ = true;
  } catch (const std::bad_alloc&) {
    // The next call, or the next sweep, posts it instead.
  }
}

void HttpIoThread::serve_turn() {
  turn_posted_ = false;
  auto of_client = turns_.upper_bound(last_turn_);
  if (of_client == turns_.end()) of_client = turns_.begin();
  if (of_client == turns_.end()) return;
  const Batch batch(*this);
  last_turn_ = of_client->first;
  const auto connection = of_client->second.front()->shared_from_this();
  leave_turns(*connection);
  try {
    connection->take_turn();
  } catch (const std::exception& error) {
    connection->on_fault(error);
  }
  arm_turns();
}

void HttpIoThread::add(std::shared_ptr<HttpConnection> connection) {
  connection->slot_ = connections_.size();
  connections_.push_back(std::move(connection));
  num_connections_.fetch_add(1, std::memory_order_relaxed);
  transport_->num_connections.fetch_add(1, std::memory_order_relaxed);
}

void HttpIoThread::remove(HttpConnection& connection) {
  note_busy(connection);
  const size_t slot = connection.slot_;
  if (slot >= connections_.size() || connections_[slot].get() != &connection) return;
  const auto keep = std::move(connections_[slot]);
  if (slot + 1 != connections_.size()) {
    connections_[slot] = std::move(connections_.back());
    connections_[slot]->slot_ = slot;
  }
  connections_.pop_back();
  num_connections_.fetch_sub(1, std::memory_order_relaxed);
  transport_->num_connections.fetch_sub(1, std::memory_order_relaxed);
  transport_->num_places.fetch_sub(1, std::memory_order_relaxed);
}

void HttpIoThread::note_idle(HttpConnection& connection) {
  std::list<HttpConnection*>& own = connection.idle_place_;
  if (own.empty()) return;
  idle_.splice(idle_.end(), own, own.begin());
  num_spare_.fetch_add(1, std::memory_order_relaxed);
  publish_idlest();
}

void HttpIoThread::note_busy(HttpConnection& connection) {
  std::list<HttpConnection*>& own = connection.idle_place_;
  if (!own.empty()) return;
  own.splice(own.end(), idle_, connection.idle_at_);
  if (!std::exchange(is_cutting_, false)) num_spare_.fetch_sub(1, std::memory_order_relaxed);
  publish_idlest();
}

void HttpIoThread::publish_idlest() {
  const auto since = idle_.empty() ? Clock::time_point::max() : idle_.front()->since_;
  idlest_since_.store(since.time_since_epoch().count(), std::memory_order_relaxed);
}

HttpIoThread::Clock::time_point HttpIoThread::idlest_since() const {
  return num_spare_.load(std::memory_order_relaxed) > 0
             ? Clock::time_point(Clock::duration(idlest_since_.load(std::memory_order_relaxed)))
             : Clock::time_point::max();
}

void HttpIoThread::cut_idlest(std::chrono::milliseconds min_idle) {
  num_spare_.fetch_sub(1, std::memory_order_relaxed);
  post([this, min_idle] {
    if (idle_.empty() || Clock::now() - idle_.front()->since_ < min_idle) {
      num_spare_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    transport_->ledger->count_idle_cut();
    is_cutting_ = true;
    idle_.front()->cut("the idlest when the server was full");
  });
}

void HttpIoThread::drain_connections() {
  post([this] {
    draining_ = true;
    const auto connections = connections_;
    for (const auto& connection : connections) connection->close_if_idle();
  });
}

void HttpIoThread::arm_sweep() {
  loop_->sweep_timer.expires_after(sweep_period_);
  loop_->sweep_timer.async_wait([this](const boost::system::error_code& ec) {
    if (ec || stopped_) return;
    MemoryReserve::refill();
    drain_queue();  // runs tasks that were posted when there was no memory to wake this thread
    arm_turns();
    sweep();
    arm_sweep();
  });
}

bool HttpIoThread::take_stranger_line() {
  const auto now = Clock::now();
  tell_left_out_lines(now);
  return transport_->stranger_lines.take(now);
}

void HttpIoThread::tell_left_out_lines(Clock::time_point now) {
  if (const int64_t count = transport_->stranger_lines.take_left_out(now); count != 0)
    log_info(
        "http_lines_left_out count={} limit_per_second={} requests=\"refused, or sent to an endpoint that "
        "needs no key\"",
        count, LineBudget::kLinesPerSecond);
}

void HttpIoThread::sweep() {
  now_ = Clock::now();
  tell_left_out_lines(now_);
  const Batch batch(*this);
  sweeping_ = connections_;  // a copy, because a connection that times out removes itself
  for (const auto& connection : sweeping_) connection->check_deadlines(now_);
  sweeping_.clear();
}

const std::string& HttpIoThread::date() {
  const std::time_t second = std::time(nullptr);
  if (second != date_second_) {
    date_second_ = second;
    date_ = http_date(second);
  }
  return date_;
}

}  // namespace hadal::server
