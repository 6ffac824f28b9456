#include "server/http_access_log.h"

#include <utility>

#include "base/log.h"

namespace hadal::server {
namespace {
constexpr size_t kMaxQueued = 16384;  // lines
}

AccessLog::AccessLog() : thread_([this] { run(); }) {}

AccessLog::~AccessLog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void AccessLog::push(std::string line) {
  bool wake;
  {
    const std::lock_guard lock(mutex_);
    if (lines_.size() >= kMaxQueued) {
      ++dropped_;
      return;
    }
    wake = lines_.empty();
    lines_.push_back(std::move(line));
  }
  if (wake) changed_.notify_one();
}

void AccessLog::run() {
  std::vector<std::string> batch;
  for (;;) {
    size_t dropped;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || !lines_.empty(); });
      if (lines_.empty()) return;
      std::swap(batch, lines_);
      dropped = std::exchange(dropped_, 0);
    }
    for (const std::string& line : batch) log_message(LogLevel::kInfo, line);
    if (dropped != 0) log_warning("access_log_dropped lines={}", dropped);
    batch.clear();
  }
}

}  // namespace hadal::server
