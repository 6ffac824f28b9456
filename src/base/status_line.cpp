#include "base/status_line.h"

#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <utility>

namespace hadal {
namespace {

constexpr std::string_view kClear = "\r\x1b[K";

// Like the log, this is never destroyed, because a writer that hangs in its output may outlive main.
struct StatusLine {
  std::mutex mutex;  // guards what is shown, and keeps the parts of one output together
  std::string shown;
};

StatusLine& the_line() {
  static auto* const line = new StatusLine;
  return *line;
}

// Writes to the file descriptor and not through stdio, because exit() takes stdio's lock of stderr, which a
// hanging write must not hold.
void write_stderr(std::string_view rest) {
  while (!rest.empty()) {
    const ssize_t count = ::write(STDERR_FILENO, rest.data(), rest.size());
    if (count < 0 && errno != EINTR) return;
    if (count > 0) rest.remove_prefix(static_cast<size_t>(count));
  }
}

}  // namespace

void set_status_line(std::string text) {
  StatusLine& line = the_line();
  const std::lock_guard lock(line.mutex);
  if (text.empty() && line.shown.empty()) return;
  write_stderr(std::string(kClear) + text);
  line.shown = std::move(text);
}

void write_above_status_line(std::string_view lines) {
  StatusLine& line = the_line();
  const std::lock_guard lock(line.mutex);
  if (line.shown.empty()) return write_stderr(lines);
  write_stderr(std::string(kClear).append(lines).append(line.shown));
}

}  // namespace hadal
