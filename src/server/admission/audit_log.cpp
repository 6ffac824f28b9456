#include "server/admission/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/memory_reserve.h"

namespace hadal::server {
namespace {

// Opens without blocking, so that a FIFO without a reader blocks neither here nor in write().
int open_file(const std::string& path) {
  return ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600);
}

constexpr int kTooSlow = -1;  // not an errno value

std::string error_text(int error) {
  return error == kTooSlow ? "the disk is too slow" : std::system_category().message(error);
}

// Runs one step of the thread's work. Each step writes its line to the server's log last, so if memory runs
// out, only that line is missing.
template <typename Work>
void survive(Work work) noexcept {
  try {
    work();
  } catch (const std::exception&) {
    write_last_line("audit log", "no memory for a line in the server's log");
  }
}

}  // namespace

Result<std::shared_ptr<AuditLog>> AuditLog::open(std::string path) {
  const int fd = open_file(path);
  if (fd < 0) return data_loss("audit log '{}' cannot be opened: {}", path, error_text(errno));
  return std::shared_ptr<AuditLog>(new AuditLog(std::move(path), fd));
}

AuditLog::~AuditLog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  ::close(fd_);
}

void AuditLog::start() {
  thread_ = std::thread([this] { run(); });
}

void AuditLog::write(std::string_view line) {
  const std::lock_guard lock(mutex_);
  if (waiting_.size() + line.size() >= kMaxWaitingBytes) return lose(1, kTooSlow);
  waiting_.append(line).append(1, '\n');
  wake_.notify_one();
}

void AuditLog::reopen() {
  const std::lock_guard lock(mutex_);
  reopen_at_ = waiting_.size();
  wake_.notify_one();
}

void AuditLog::flush() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return waiting_.empty() && !reopen_at_ && !busy_; });
}

int64_t AuditLog::num_lost() const {
  const std::lock_guard lock(mutex_);
  return num_lost_;
}

void AuditLog::run() {
  const MemoryReserve::Scope reserve;  // all requests share the file
  std::string lines;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || reopen_at_ || !waiting_.empty(); });
    if (waiting_.empty() && !reopen_at_) return;
    lines.swap(waiting_);
    const auto reopen_at = std::exchange(reopen_at_, std::nullopt);
    busy_ = true;
    lock.unlock();
    std::string_view rest = lines;
    if (reopen_at) {
      survive([&] { write_out(rest.substr(0, *reopen_at)); });
      rest.remove_prefix(*reopen_at);
      survive([&] { open_again(); });
    }
    survive([&] { write_out(rest); });
    lines.clear();
    lock.lock();
    busy_ = false;
    idle_.notify_all();
  }
}

// Writes from byte `done` on, and advances `done`. Returns errno, or 0.
int AuditLog::write_bytes(std::string_view bytes, size_t& done) {
  while (done < bytes.size()) {
    const ssize_t count = ::write(fd_, bytes.data() + done, bytes.size() - done);
    if (count > 0) done += static_cast<size_t>(count);
    if (count == 0) return ENOSPC;  // otherwise the write would be tried for ever
    if (count < 0 && errno != EINTR) return errno;
  }
  return 0;
}

void AuditLog::write_out(std::string_view lines) {
  if (lines.empty()) return;
  size_t done = 0;
  int error = 0;
  if (torn_) {
    size_t mended = 0;
    error = write_bytes("\n", mended);
    torn_ = mended == 0;
  }
  if (error == 0) error = write_bytes(lines, done);
  if (done > 0) torn_ = lines[done - 1] != '\n';
  const std::lock_guard lock(mutex_);
  if (error != 0)
    return lose(std::count(lines.begin() + static_cast<ptrdiff_t>(done), lines.end(), '\n'), error);
  if (!std::exchange(failing_, false)) return;
  log_warning("audit log is written again path={} lost_lines={}", path_, std::exchange(lost_before_, 0));
}

void AuditLog::open_again() {
  const int fd = open_file(path_);
  if (fd < 0) {
    const int error = errno;
    return log_error(
        "audit log stays in the old file, because the new one cannot be opened path={} error=\"{}\"", path_,
        error_text(error));
  }
  ::close(std::exchange(fd_, fd));
  torn_ = false;
  log_info("audit log opened again path={}", path_);
}

// The caller holds the lock.
void AuditLog::lose(int64_t count, int error) {
  num_lost_ += count;
  lost_before_ += count;
  if (std::exchange(failing_, true)) return;
  log_error("audit log loses lines path={} error=\"{}\"", path_, error_text(error));
}

}  // namespace hadal::server
