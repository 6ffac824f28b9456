// Opens the files of a checkpoint, which may come from anybody. It opens only regular files and never blocks.
// Opening a FIFO would block until somebody writes to it, and reading from a device may never end.
#pragma once

#include <cstddef>
#include <filesystem>

#include "base/result.h"

namespace hadal {

// A RegularFile is open for reading until its destructor closes it. It can only be moved; any thread may use
// fd().
class RegularFile {
 public:
  // Errors are kNotFound when the file does not exist, and kDataLoss when it is not a regular file (the
  // message says what it is) or cannot be opened.
  static Result<RegularFile> open(const std::filesystem::path& path);

  RegularFile(RegularFile&& other) noexcept;
  RegularFile& operator=(RegularFile&& other) noexcept;
  RegularFile(const RegularFile&) = delete;
  RegularFile& operator=(const RegularFile&) = delete;
  ~RegularFile();

  int fd() const { return fd_; }
  size_t size() const { return size_; }  // in bytes, when it was opened

 private:
  explicit RegularFile(int fd) : fd_(fd) {}

  int fd_ = -1;
  size_t size_ = 0;
};

}  // namespace hadal
