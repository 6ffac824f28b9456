// Writes the content of one blob. Writing continues where an earlier attempt ended, and the file gets its
// final name only when size and checksum are right. One thread uses a BlobFile at a time; it must hold the
// blob's lock (hub/file_lock.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "base/result.h"
#include "hub/checksum.h"
#include "hub/repository_info.h"

namespace hadal::hub {

class BlobFile {
 public:
  // Opens or creates `incomplete` and reads its present content for the checksum; a file longer than
  // `file.size` is emptied. Stops with kCancelled once `is_cancelled` returns true. Other errors are
  // kInternal.
  static Result<BlobFile> open(const std::filesystem::path& incomplete, const RemoteFile& file,
                               const std::function<bool()>& is_cancelled);

  BlobFile(BlobFile&& other) noexcept;
  BlobFile& operator=(BlobFile&&) = delete;
  BlobFile(const BlobFile&) = delete;
  ~BlobFile();

  int64_t size() const { return size_; }  // bytes that are there
  bool is_full() const { return size_ == file_.size; }

  // Appends a piece. The errors are kDataLoss when the content would be longer than the hub states, and
  // kResourceExhausted when it cannot be written: the disk is full, or a limit of the system is reached.
  Result<void> append(std::span<const std::byte> piece);

  // Drops the whole content, for callers that have found it wrong.
  Result<void> restart();

  // Compares the checksum of a complete file with the one that the hub states. If they are equal, renames the
  // file to `blob`. Otherwise the error is kDataLoss, and then only restart() may follow.
  Result<void> finish(const std::filesystem::path& blob);

 private:
  BlobFile(int fd, std::filesystem::path path, RemoteFile file);
  Result<void> read_existing(const std::function<bool()>& is_cancelled);

  int fd_ = -1;
  std::filesystem::path path_;
  RemoteFile file_;
  int64_t size_ = 0;
  Checksum checksum_;
};

}  // namespace hadal::hub
