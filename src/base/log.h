// One-line logging: lower-case event, then key=value. Behind a .cpp because spdlog's headers are slow to
// compile. Thread-safe. Writes to stderr, so that stdout carries only what a command prints. Control
// characters are escaped: one call is one line.
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

// While it lives, logging never waits for stderr: lines go to a thread of their own (base/log_writer.h), and
// are dropped and counted when stderr does not take them. One at a time. Its end writes what is left; should
// stderr hang even then, it gives up after a moment, and the process logs nothing more.
class AsyncLogging {
 public:
  AsyncLogging();
  ~AsyncLogging();
  AsyncLogging(const AsyncLogging&) = delete;
  AsyncLogging& operator=(const AsyncLogging&) = delete;
};

// Before the process ends by _exit: waits until the lines so far are out, at most `patience`.
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
