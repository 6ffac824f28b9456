#include "base/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace hadal {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : "something else";
}

Status not_regular(const std::filesystem::path& path, mode_t mode) {
  return data_loss("{}: is not a regular file but {}", path.string(), kind_of(mode));
}

}  // namespace

Result<RegularFile> RegularFile::open(const std::filesystem::path& path) {
  // stat() checks the type before the file is opened, because opening some devices has side effects. Its
  // answer may be outdated by then, so fstat() below decides.
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) return not_regular(path, info.st_mode);
  RegularFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.fd_ < 0) {
    if (errno == ENOENT) return not_found("{}: no such file", path.string());
    return data_loss("{}: cannot be opened: {}", path.string(), std::strerror(errno));
  }
  if (::fstat(file.fd_, &info) != 0)
    return data_loss("{}: cannot be examined: {}", path.string(), std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return not_regular(path, info.st_mode);
  file.size_ = static_cast<size_t>(info.st_size);
  return file;
}

RegularFile::RegularFile(RegularFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), size_(std::exchange(other.size_, 0)) {}

RegularFile& RegularFile::operator=(RegularFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  return *this;
}

RegularFile::~RegularFile() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace hadal
