#include "base/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/regular_file.h"

namespace hadal {
namespace {

// Recognises the pointer that a clone without Git LFS has in place of a large file (git-lfs docs/spec.md:
// less than 1024 bytes, the version first).
bool is_lfs_pointer(std::span<const std::byte> bytes) {
  constexpr std::string_view kFirstLine = "version https://git-lfs.github.com/spec/";
  return bytes.size() < 1024 && bytes.size() >= kFirstLine.size() &&
         std::memcmp(bytes.data(), kFirstLine.data(), kFirstLine.size()) == 0;
}

Status lfs_pointer(const std::filesystem::path& path) {
  return data_loss("{}: is a Git LFS pointer, not the file itself; fetch the file with `git lfs pull`",
                   path.string());
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  HADAL_ASSIGN_OR_RETURN(const RegularFile opened, RegularFile::open(path));
  MappedFile file;
  file.path_ = path;
  file.size_ = opened.size();
  if (file.size_ == 0) return file;
  void* data = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, opened.fd(), 0);
  if (data == MAP_FAILED) return data_loss("{}: cannot be mapped: {}", path.string(), std::strerror(errno));
  file.data_ = static_cast<const std::byte*>(data);
  file.record_ = MappingRecord(file.data_, file.size_, path);
  if (is_lfs_pointer(file.bytes())) return lfs_pointer(path);
  return file;
}

MappedFile::~MappedFile() {
  record_.release();
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      record_(std::move(other.record_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(record_, other.record_);
  return *this;
}

Result<std::string> read_text_file(const std::filesystem::path& path, size_t max_bytes) {
  HADAL_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::open(path));
  if (file.size() > max_bytes)
    return data_loss("{} has {} bytes; at most {} are allowed", path.string(), file.size(), max_bytes);
  // The file is read and not mapped, because reading a mapping ends the process when the file has become
  // shorter. The buffer has one byte more than the file, because the file may have grown since it was opened,
  // and some file systems report a size of 0 bytes for every file.
  std::string text(file.size() + 1, '\0');
  size_t done = 0;
  while (true) {
    const ssize_t count = ::read(file.fd(), text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return data_loss("{}: cannot be read: {}", path.string(), std::strerror(errno));
    if (count == 0) break;
    done += static_cast<size_t>(count);
    if (done > max_bytes)
      return data_loss("{}: has more than {} bytes, the most that is allowed", path.string(), max_bytes);
    if (done == text.size()) text.resize(2 * done);
  }
  text.resize(done);
  if (is_lfs_pointer(std::as_bytes(std::span(text)))) return lfs_pointer(path);
  return text;
}

}  // namespace hadal
