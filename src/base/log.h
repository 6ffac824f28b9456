// Logs in one line: a lower-case event, then key=value pairs. It is behind a .cpp because spdlog's headers
// are slow to compile. Any thread may call it. Lines go to stderr, so that stdout carries only what a command
// prints. All but printable ASCII is escaped, so one call is always one line.
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

// While this object lives, logging never waits for stderr: lines go to a thread of their own
// (base/log_writer.h) and are dropped and counted when stderr is too slow. Only one may exist. Its destructor
// writes the rest; if stderr hangs even then, it gives up after a moment, and the process logs nothing more.
class AsyncLogging {
 public:
  AsyncLogging();
  ~AsyncLogging();
  AsyncLogging(const AsyncLogging&) = delete;
  AsyncLogging& operator=(const AsyncLogging&) = delete;
};

// Waits at most `patience` until all lines so far are written. Callers that end the process by _exit need it.
void flush_log(std::chrono::milliseconds patience);

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (log_level() <= LogLevel::kDebug)
    log_message(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
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
