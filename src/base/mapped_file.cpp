#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace hadal {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// Recognises the pointer that a clone without Git LFS has in place of a large file (git-lfs docs/spec.md:
// less than 1024 bytes, the version first).
bool is_lfs_pointer(std::span<const std::byte> bytes) {
  constexpr std::string_view kFirstLine = "version https://git-lfs.github.com/spec/";
  return bytes.size() < 1024 && bytes.size() >= kFirstLine.size() &&
         std::memcmp(bytes.data(), kFirstLine.data(), kFirstLine.size()) == 0;
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) {
    if (errno == ENOENT) return not_found("{}: no such file", path.string());
    return data_loss("{}: cannot be opened: {}", path.string(), std::strerror(errno));
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return data_loss("{}: not a regular file", path.string());
  }
  MappedFile file;
  file.path_ = path;
  file.size_ = static_cast<size_t>(info.st_size);
  if (file.size_ == 0) return file;
  void* data = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return data_loss("{}: cannot be mapped: {}", path.string(), std::strerror(errno));
  file.data_ = static_cast<const std::byte*>(data);
  if (is_lfs_pointer(file.bytes())) {
    return data_loss("{}: is a Git LFS pointer, not the file itself; fetch the file with `git lfs pull`",
                     path.string());
  }
  return file;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Result<std::string> read_text_file(const std::filesystem::path& path, size_t max_bytes) {
  HADAL_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  if (file.bytes().size() > max_bytes) {
    return data_loss("{}: {} bytes; at most {} are allowed", path.string(), file.bytes().size(), max_bytes);
  }
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

}  // namespace hadal
