#include "engine/loop/watchdog.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"

namespace hadal {
namespace {

constexpr size_t kShownIds = 16;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string list(const std::vector<RequestId>& ids) {
  std::string out;
  for (size_t i = 0; i < std::min(ids.size(), kShownIds); ++i) {
    out += fmt::format("{}{}", i > 0 ? "," : "", ids[i]);
  }
  if (ids.size() > kShownIds) out += fmt::format(",… ({} in all)", ids.size());
  return out;
}

}  // namespace

Watchdog::Watchdog(double timeout_s, std::function<void(const std::string&)> on_stall)
    : timeout_ns_(static_cast<int64_t>(timeout_s * 1e9)), on_stall_(std::move(on_stall)) {
  if (enabled()) thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::enter(const char* phase) {
  if (!enabled()) return;
  phase_.store(phase, std::memory_order_relaxed);
  since_ns_.store(now_ns(), std::memory_order_release);
}

void Watchdog::idle() {
  if (!enabled()) return;
  since_ns_.store(0, std::memory_order_release);
}

void Watchdog::set_step(int64_t step, std::vector<RequestId>& ids) {
  const std::lock_guard lock(mutex_);
  step_ = step;
  ids_.swap(ids);
}

void Watchdog::watch() {
  const auto interval =
      std::chrono::nanoseconds(std::clamp<int64_t>(timeout_ns_ / 4, 1'000'000, 1'000'000'000));
  int64_t reported = 0;  // the phase that was reported last, identified by its beginning
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, interval, [&] { return stop_; })) {
    const int64_t since = since_ns_.load(std::memory_order_acquire);
    const int64_t now = now_ns();
    if (since == 0 || since == reported || now - since <= timeout_ns_) continue;
    reported = since;
    report(since, now);
  }
}

// The caller holds the mutex. So set_step waits until the line is written, which does not harm an engine that
// hangs.
void Watchdog::report(int64_t since_ns, int64_t now) {
  const RequestId request = request_.load(std::memory_order_relaxed);
  const std::string where =
      request != 0 ? fmt::format(" in a callback of request {}", request) : std::string();
  const std::string line = fmt::format("engine stalled phase={}{} seconds={:.1f} step={} requests={}",
                                       phase_.load(std::memory_order_relaxed), where,
                                       static_cast<double>(now - since_ns) * 1e-9, step_, list(ids_));
  if (on_stall_) on_stall_(line);  // first, because the log may be what hangs
  log_error("{}", line);
}

}  // namespace hadal
