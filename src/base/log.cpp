#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>

namespace hadal {
namespace {

// The logger is the one process-wide object: it has no state that a result could depend on.
spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made =
        std::make_shared<spdlog::logger>("hadal", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("[%Y-%m-%d %H:%M:%S.%e] %^%l%$ %v");
    made->set_level(spdlog::level::trace);
    return made;
  }();
  return *instance;
}

std::atomic<LogLevel> current_level{LogLevel::kInfo};

}  // namespace

void set_log_level(LogLevel level) {
  current_level.store(level, std::memory_order_relaxed);
}
LogLevel log_level() {
  return current_level.load(std::memory_order_relaxed);
}

void log_message(LogLevel level, std::string_view message) {
  if (level < log_level()) return;
  switch (level) {
    case LogLevel::kDebug:
      logger().debug(message);
      break;
    case LogLevel::kInfo:
      logger().info(message);
      break;
    case LogLevel::kWarning:
      logger().warn(message);
      break;
    case LogLevel::kError:
      logger().error(message);
      break;
    case LogLevel::kOff:
      break;
  }
}

}  // namespace hadal
