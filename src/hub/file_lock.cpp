#include "hub/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace hadal::hub {

Result<FileLock> FileLock::acquire(const std::filesystem::path& path, const std::function<bool()>& wait) {
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) {
    return make_status(StatusCode::kInternal, "cannot open the lock {}: {}", path.string(),
                       std::strerror(errno));
  }
  FileLock lock(fd);
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return make_status(StatusCode::kInternal, "cannot lock {}: {}", path.string(), std::strerror(errno));
    }
    if (!wait())
      return make_status(StatusCode::kCancelled, "interrupted while waiting for {}", path.string());
  }
  return lock;
}

FileLock::FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace hadal::hub
