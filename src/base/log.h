// Writes log lines: a lower-case event, then key=value pairs. Only the .cpp file includes spdlog, because its
// headers are slow to compile. Any thread may call these functions. Lines go to stderr, so that stdout
// carries only what a command prints. Everything except printable ASCII is escaped, so one call is always one
// line.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <string_view>
#include <utility>

namespace hadal {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

void set_log_level(LogLevel level);
LogLevel log_level();
void log_message(LogLevel level, std::string_view message);

// While this object lives, logging never waits for stderr: a separate thread (base/log_writer.h) writes the
// lines, and lines are dropped and counted when stderr is too slow. Only one such object may exist. Its
// destructor writes the remaining lines; if that takes longer than two seconds, it gives up, and the process
// logs nothing more.
class AsyncLogging {
 public:
  AsyncLogging();
  ~AsyncLogging();
  AsyncLogging(const AsyncLogging&) = delete;
  AsyncLogging& operator=(const AsyncLogging&) = delete;
};

// Waits until all lines so far are written, but at most for `patience`. Callers that end the process by _exit
// need this.
void flush_log(std::chrono::milliseconds patience);

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  if (log_level() <= LogLevel::kInfo)
    log_message(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  if (log_level() <= LogLevel::kWarning)
    log_message(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace hadal
