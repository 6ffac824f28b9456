#include "base/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "base/log_writer.h"
#include "base/status_line.h"

namespace hadal {
namespace {

constexpr std::chrono::milliseconds kLastPatience{2000};  // how long the exit waits for the output

const char* colour(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::debug:
      return "\x1b[36m";
    case spdlog::level::info:
      return "\x1b[32m";
    case spdlog::level::warn:
      return "\x1b[33;1m";
    default:
      return "\x1b[31;1m";
  }
}

// Writes to the file descriptor and not through stdio, because exit() takes stdio's lock of stderr, which a
// hanging write must not hold.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t formatted;
    formatter_->format(message, formatted);
    std::string line = fmt::to_string(formatted);
    if (message.color_range_end > message.color_range_start && ::isatty(STDERR_FILENO) == 1) {
      line.insert(message.color_range_end, "\x1b[m");
      line.insert(message.color_range_start, colour(message.level));
    }
    write_above_status_line(line);
  }
  void flush_() override {}
};

// The log may be a process-wide object, because no result depends on its state. It is never destroyed,
// because a writer thread that hangs in its output may outlive main.
struct Log {
  spdlog::logger logger{"hadal", std::make_shared<StderrSink>()};
  std::mutex mutex;  // guards the members below
  std::shared_ptr<LogWriter> writer;
  bool mute = false;  // the output hung at the exit, so no other thread may write to it
};

Log& the_log() {
  static Log* const log = [] {
    auto* made = new Log;
    made->logger.set_pattern("[%Y-%m-%d %H:%M:%S.%e] %^%l%$ %v");
    made->logger.set_level(spdlog::level::trace);
    return made;
  }();
  return *log;
}

std::atomic<LogLevel> current_level{LogLevel::kInfo};

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

void write_line(const LogLine& line) {
  the_log().logger.log(line.when, spdlog::source_loc{}, spdlog_level(line.level), line.text);
}

// Escapes everything but printable ASCII, so that text sent by a client can neither begin a line of its own,
// nor control a terminal, nor reorder or hide the text beside it (U+202E, U+2028).
std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte >= 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

void set_log_level(LogLevel level) {
  current_level.store(level, std::memory_order_relaxed);
}
LogLevel log_level() {
  return current_level.load(std::memory_order_relaxed);
}

void log_message(LogLevel level, std::string_view message) {
  if (level < log_level() || level == LogLevel::kOff) return;
  Log& log = the_log();
  std::shared_ptr<LogWriter> writer;
  {
    const std::lock_guard lock(log.mutex);
    if (log.mute) return;
    writer = log.writer;
  }
  if (writer) return writer->push(level, escaped(message));
  write_line({level, std::chrono::system_clock::now(), escaped(message)});
}

void flush_log(std::chrono::milliseconds patience) {
  Log& log = the_log();
  std::shared_ptr<LogWriter> writer;
  {
    const std::lock_guard lock(log.mutex);
    writer = log.writer;
  }
  if (writer) writer->flush(patience);
}

AsyncLogging::AsyncLogging() {
  auto writer = std::make_shared<LogWriter>(write_line);
  const std::lock_guard lock(the_log().mutex);
  the_log().writer = std::move(writer);
}

AsyncLogging::~AsyncLogging() {
  Log& log = the_log();
  std::shared_ptr<LogWriter> writer;
  {
    const std::lock_guard lock(log.mutex);
    writer = log.writer;
  }
  const bool written = !writer || writer->stop(kLastPatience);
  const std::lock_guard lock(log.mutex);
  log.writer = nullptr;
  log.mute = !written;
}

}  // namespace hadal
