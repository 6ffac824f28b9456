#include "hub/blob_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

namespace hadal::hub {
namespace {

Status cannot(const char* what, const std::filesystem::path& path) {
  return make_status(StatusCode::kInternal, "cannot {} {}: {}", what, path.string(), std::strerror(errno));
}

}  // namespace

BlobFile::BlobFile(int fd, std::filesystem::path path, RemoteFile file)
    : fd_(fd), path_(std::move(path)), file_(std::move(file)), checksum_(file_.checksum, file_.size) {}

BlobFile::BlobFile(BlobFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      file_(std::move(other.file_)),
      size_(other.size_),
      checksum_(std::move(other.checksum_)) {}

BlobFile::~BlobFile() {
  if (fd_ >= 0) ::close(fd_);
}

Result<BlobFile> BlobFile::open(const std::filesystem::path& incomplete, const RemoteFile& file,
                                const std::function<bool()>& is_cancelled) {
  // O_NOFOLLOW refuses a symbolic link, because a link would redirect the writes to a place that somebody
  // else chose.
  const int fd = ::open(incomplete.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (fd < 0) return cannot("open", incomplete);
  BlobFile blob(fd, incomplete, file);
  HADAL_RETURN_IF_ERROR(blob.read_existing(is_cancelled));
  return blob;
}

Result<void> BlobFile::read_existing(const std::function<bool()>& is_cancelled) {
  struct stat status = {};
  if (::fstat(fd_, &status) != 0) return cannot("read", path_);
  if (!S_ISREG(status.st_mode)) {
    return make_status(StatusCode::kInternal, "{} is not a regular file; remove it", path_.string());
  }
  if (status.st_size > file_.size) return restart();
  std::vector<std::byte> buffer(size_t{1} << 20);
  while (true) {
    if (is_cancelled()) return make_status(StatusCode::kCancelled, "interrupted");
    const ssize_t count = ::pread(fd_, buffer.data(), buffer.size(), size_);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return cannot("read", path_);
    if (count == 0) return {};
    checksum_.add(std::span(buffer).first(static_cast<size_t>(count)));
    size_ += count;
  }
}

Result<void> BlobFile::append(std::span<const std::byte> piece) {
  if (static_cast<int64_t>(piece.size()) > file_.size - size_) {
    return data_loss("{}: the content is longer than the {} bytes that the hub states", file_.name,
                     file_.size);
  }
  checksum_.add(piece);
  while (!piece.empty()) {
    const ssize_t count = ::pwrite(fd_, piece.data(), piece.size(), size_);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      // The bytes written so far are kept; the next attempt reads them again for the checksum and continues.
      return make_status(StatusCode::kResourceExhausted, "cannot write {}: {}", path_.string(),
                         std::strerror(errno));
    }
    size_ += count;
    piece = piece.subspan(static_cast<size_t>(count));
  }
  return {};
}

Result<void> BlobFile::restart() {
  if (::ftruncate(fd_, 0) != 0) return cannot("empty", path_);
  size_ = 0;
  checksum_ = Checksum(file_.checksum, file_.size);
  return {};
}

Result<void> BlobFile::finish(const std::filesystem::path& blob) {
  const std::string computed = checksum_.finish();
  if (computed != file_.checksum) {
    return data_loss("{}: the checksum of its content is {}, but the hub states {}", file_.name, computed,
                     file_.checksum);
  }
  std::error_code error;
  std::filesystem::rename(path_, blob, error);
  if (error) return make_status(StatusCode::kInternal, "cannot write {}: {}", blob.string(), error.message());
  return {};
}

}  // namespace hadal::hub
