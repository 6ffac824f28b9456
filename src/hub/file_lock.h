// Holds a lock on a file, which keeps processes from fetching the same blob twice. The lock is flock's on the
// file that the hub's Python library locks, so that it holds between both.
#pragma once

#include <filesystem>
#include <functional>

#include "base/result.h"

namespace hadal::hub {

// A FileLock can only be moved; its destructor releases the lock. The file stays, because others may wait on
// it.
class FileLock {
 public:
  // Creates the file and its directories where they are missing, and waits until nobody else holds the lock
  // or `wait` returns false; `wait` is called between two attempts and must take a while. The errors are
  // kCancelled then, and kInternal when the file cannot be locked.
  static Result<FileLock> acquire(const std::filesystem::path& path, const std::function<bool()>& wait);

  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}

  int fd_ = -1;
};

}  // namespace hadal::hub
