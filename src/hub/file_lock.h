// Holds a lock on a file, which keeps processes from fetching the same blob twice. The lock is an flock on
// the file that the hub's Python library locks, so each program respects the other's lock.
#pragma once

#include <filesystem>
#include <functional>

#include "base/result.h"

namespace hadal::hub {

// A FileLock can only be moved; its destructor releases the lock. The file is kept, because other processes
// may be waiting for the lock.
class FileLock {
 public:
  // Creates the file and its directories if they are missing, and waits until nobody else holds the lock.
  // `wait` is called between two attempts and must sleep; when it returns false, the error is kCancelled. The
  // error is kInternal when the file cannot be locked.
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
