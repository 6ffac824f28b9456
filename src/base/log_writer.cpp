#include "base/log_writer.h"

#include <fmt/format.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace hadal {
namespace {

constexpr size_t kMaxLines = 16384;
constexpr size_t kMaxBytes = size_t{32} << 20;
constexpr size_t kReservedLines = 1024;  // additional room for warnings and errors
constexpr size_t kReservedBytes = size_t{1} << 20;

}  // namespace

struct LogWriter::State {
  std::function<void(const LogLine&)> write;
  std::mutex mutex;
  std::condition_variable changed;  // there is something to write, or the thread must stop
  std::condition_variable written;  // everything is written
  std::vector<LogLine> lines;
  size_t num_bytes = 0;  // size of the queued lines
  int64_t num_dropped = 0;
  bool busy = false;  // the thread is writing lines
  bool closed = false;
  bool abandoned = false;
};

LogWriter::LogWriter(std::function<void(const LogLine&)> write) : state_(std::make_shared<State>()) {
  state_->write = std::move(write);
  thread_ = std::thread([state = state_] { run(state); });
}

LogWriter::~LogWriter() {
  bool busy;
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = state_->abandoned = true;
    busy = state_->busy;
  }
  state_->changed.notify_one();
  if (busy) {
    thread_.detach();  // the thread may never return from `write`
  } else {
    thread_.join();
  }
}

void LogWriter::push(LogLevel level, std::string text) {
  State& state = *state_;
  LogLine line{level, std::chrono::system_clock::now(), std::move(text)};
  const bool urgent = level >= LogLevel::kWarning;
  const size_t max_lines = kMaxLines + (urgent ? kReservedLines : 0);
  const size_t max_bytes = kMaxBytes + (urgent ? kReservedBytes : 0);
  bool wake;
  {
    const std::lock_guard lock(state.mutex);
    if (state.closed) return;
    if (state.lines.size() >= max_lines || state.num_bytes + line.text.size() > max_bytes) {
      ++state.num_dropped;
      return;
    }
    wake = state.lines.empty();
    state.num_bytes += line.text.size();
    state.lines.push_back(std::move(line));
  }
  if (wake) state.changed.notify_one();
}

bool LogWriter::flush(std::chrono::milliseconds patience) {
  std::unique_lock lock(state_->mutex);
  return state_->written.wait_for(lock, patience, [&] { return state_->lines.empty() && !state_->busy; });
}

bool LogWriter::stop(std::chrono::milliseconds patience) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
  }
  return flush(patience);
}

void LogWriter::run(const std::shared_ptr<State>& state) {
  std::vector<LogLine> batch;
  std::unique_lock lock(state->mutex);
  while (true) {
    state->changed.wait(lock, [&] { return state->closed || !state->lines.empty(); });
    if (state->abandoned || state->lines.empty()) return;
    batch.swap(state->lines);
    state->num_bytes = 0;
    const int64_t num_dropped = std::exchange(state->num_dropped, 0);
    state->busy = true;
    lock.unlock();
    for (const LogLine& line : batch) state->write(line);
    if (num_dropped > 0) {
      state->write({LogLevel::kWarning, std::chrono::system_clock::now(),
                    fmt::format("log output was too slow: {} lines dropped", num_dropped)});
    }
    batch.clear();
    lock.lock();
    state->busy = false;
    if (state->lines.empty()) state->written.notify_all();
  }
}

}  // namespace hadal
