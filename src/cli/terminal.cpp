#include "cli/terminal.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>

#include "base/log.h"
#include "base/status_line.h"
#include "cli/run.h"

namespace hadal::cli {
namespace {

std::atomic<int> guards{0};
std::atomic<int> signals_seen{0};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

void on_signal(int) {
  if (guards.load() == 0 || signals_seen.fetch_add(1) > 0) _exit(kExitInterrupted);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_signal;  // without SA_RESTART, so that a read from the terminal returns
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  std::signal(SIGPIPE, SIG_DFL);
}

InterruptGuard::InterruptGuard() {
  signals_seen = 0;
  ++guards;
}
InterruptGuard::~InterruptGuard() {
  --guards;
}
bool InterruptGuard::seen() {
  return signals_seen.load() > 0;
}
void InterruptGuard::reset() {
  signals_seen = 0;
}

void write_stdout(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      throw Error(fmt::format("cannot write to standard output: {}", std::strerror(errno)));
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
}

Result<std::string> read_stdin() {
  std::string text;
  char buffer[65536];
  while (true) {
    const ssize_t count = ::read(STDIN_FILENO, buffer, sizeof(buffer));
    if (count == 0) return text;
    if (count < 0) {
      if (errno == EINTR) continue;
      return make_status(StatusCode::kInternal, "cannot read standard input: {}", std::strerror(errno));
    }
    text.append(buffer, static_cast<size_t>(count));
  }
}

std::optional<std::string> LineReader::next_line() {
  while (true) {
    const size_t end = pending_.find('\n');
    if (end != std::string::npos || (at_end_ && !pending_.empty())) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end == std::string::npos ? end : end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return line;
    }
    if (at_end_) return std::nullopt;
    // Each wait is short, because Ctrl-C may arrive just before a wait or at another thread.
    constexpr int kWaitMs = 100;
    pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&input, 1, kWaitMs);
    if (InterruptGuard::seen()) return std::nullopt;
    if (ready <= 0) continue;
    char buffer[4096];
    const ssize_t count = ::read(STDIN_FILENO, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::nullopt;
    if (count == 0) at_end_ = true;
    pending_.append(buffer, static_cast<size_t>(count));
  }
}

bool stdin_is_terminal() {
  return isatty(STDIN_FILENO) == 1;
}
bool stdout_is_terminal() {
  return isatty(STDOUT_FILENO) == 1;
}
bool stderr_is_terminal() {
  return isatty(STDERR_FILENO) == 1;
}

Progress::Progress(std::string_view title)
    : title_(title),
      bar_(stderr_is_terminal() && log_level() <= LogLevel::kInfo),
      begin_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  finish();
}

std::string time_left(size_t done, size_t total, double elapsed_s) {
  constexpr double kTooEarly = 1.0;  // seconds
  if (done == 0 || done >= total || elapsed_s < kTooEarly) return {};
  const double left = elapsed_s * static_cast<double>(total - done) / static_cast<double>(done);
  const auto seconds = static_cast<int64_t>(std::min(std::ceil(left), 1e9));
  if (seconds < 60) return fmt::format("{} s", seconds);
  if (seconds < 3600) return fmt::format("{} min {} s", seconds / 60, seconds % 60);
  return fmt::format("{} h {} min", seconds / 3600, seconds % 3600 / 60);
}

void Progress::update(size_t done, size_t total, std::string_view what) {
  const auto now = std::chrono::steady_clock::now();
  const int percent =
      total == 0 ? 100 : static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(total));
  const std::string left = time_left(done, total, std::chrono::duration<double>(now - begin_).count());
  if (!bar_) {
    if (percent < next_percent_ || percent >= 100 || now - begin_ < std::chrono::seconds(1)) return;
    log_info("{} progress={}% what=\"{}\" left=\"{}\"", title_, percent, what, left);
    while (next_percent_ <= percent) next_percent_ += 25;
    return;
  }
  if (drawn_ && done < total && now - last_draw_ < std::chrono::milliseconds(50)) return;
  drawn_ = true;
  last_draw_ = now;
  constexpr int kWidth = 30;
  const int filled = percent * kWidth / 100;
  set_status_line(fmt::format("{} [{}{}] {:3d}% {}{}", title_, std::string(filled, '='),
                              std::string(kWidth - filled, ' '), percent, what,
                              left.empty() ? "" : fmt::format(", {} left", left)));
}

void Progress::finish() {
  if (drawn_) set_status_line("");
  drawn_ = false;
}

}  // namespace hadal::cli
