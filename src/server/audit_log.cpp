#include "server/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/log.h"

namespace hadal::server {
namespace {

// Opens without blocking, so that a FIFO without a reader blocks neither here nor in write().
int open_file(const std::string& path) {
  return ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600);
}

std::string error_text(int error) {
  return std::system_category().message(error);
}

}  // namespace

Result<std::shared_ptr<AuditLog>> AuditLog::open(std::string path) {
  const int fd = open_file(path);
  if (fd < 0) return invalid_argument("audit log '{}' cannot be opened: {}", path, error_text(errno));
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
  if (waiting_.size() + line.size() >= kMaxWaitingBytes) return lose(1, "the disk is too slow");
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
      write_out(rest.substr(0, *reopen_at));
      rest.remove_prefix(*reopen_at);
      open_again();
    }
    write_out(rest);
    lines.clear();
    lock.lock();
    busy_ = false;
    idle_.notify_all();
  }
}

void AuditLog::write_out(std::string_view lines) {
  if (lines.empty()) return;
  const bool mends = torn_;
  const std::string text = (mends ? "\n" : "") + std::string(lines);
  size_t done = 0;
  int error = 0;
  while (done < text.size() && error == 0) {
    const ssize_t count = ::write(fd_, text.data() + done, text.size() - done);
    if (count > 0) done += static_cast<size_t>(count);
    if (count == 0) error = ENOSPC;  // otherwise the write would be tried for ever
    if (count < 0 && errno != EINTR) error = errno;
  }
  if (done > 0) torn_ = text[done - 1] != '\n';
  const std::lock_guard lock(mutex_);
  if (error != 0) {
    const int64_t rest = std::count(text.begin() + static_cast<ptrdiff_t>(done), text.end(), '\n');
    return lose(mends && done == 0 ? rest - 1 : rest, error_text(error));
  }
  if (!std::exchange(failing_, false)) return;
  log_warning("audit log is written again path={} lost_lines={}", path_, std::exchange(lost_before_, 0));
}

void AuditLog::open_again() {
  const int fd = open_file(path_);
  if (fd < 0) {
    return log_error(
        "audit log stays in the old file, because the new one cannot be opened path={} error=\"{}\"", path_,
        error_text(errno));
  }
  ::close(std::exchange(fd_, fd));
  torn_ = false;
  log_info("audit log opened again path={}", path_);
}

// The caller holds the lock.
void AuditLog::lose(int64_t count, const std::string& why) {
  num_lost_ += count;
  lost_before_ += count;
  if (std::exchange(failing_, true)) return;
  log_error("audit log loses lines path={} error=\"{}\"", path_, why);
}

}  // namespace hadal::server
