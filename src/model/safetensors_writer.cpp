#include "model/safetensors_writer.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace hadal {
namespace {

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

Status system_failure(const char* action, const std::filesystem::path& path, int error) {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG)
    return make_status(StatusCode::kResourceExhausted, "no space left on the disk: cannot {} {}", action,
                       path.string());
  return make_status(StatusCode::kInternal, "cannot {} {}: {}", action, path.string(), std::strerror(error));
}

Result<void> write_at(int fd, int64_t offset, std::span<const std::byte> bytes,
                      const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return system_failure("write", path, written == 0 ? ENOSPC : errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += written;
  }
  return {};
}

// Reserves the blocks, so that a full disk is detected at once and not after minutes of writing.
Result<void> reserve(int fd, int64_t size, const std::filesystem::path& path) {
  if (::fallocate(fd, 0, 0, size) == 0) return {};
  if (errno == EOPNOTSUPP || errno == EINVAL || errno == ENOSYS) {
    if (::ftruncate(fd, size) == 0) return {};
    return system_failure("size", path, errno);
  }
  const int error = errno;
  struct statvfs space = {};
  if (error == ENOSPC && ::fstatvfs(fd, &space) == 0) {
    const auto free_bytes = static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize);
    return make_status(StatusCode::kResourceExhausted,
                       "no space left on the disk: {} needs {:.2f} GiB, but {:.2f} GiB are free",
                       path.string(), static_cast<double>(size) / 0x1p30, free_bytes / 0x1p30);
  }
  return system_failure("reserve space for", path, error);
}

}  // namespace

int64_t SafetensorsWriter::Entry::num_bytes() const {
  return std::accumulate(shape.begin(), shape.end(), dtype_bytes(dtype), std::multiplies<>());
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::filesystem::path& path,
                                                    std::vector<Entry> entries) {
  // Renaming would replace a link, a device or a pipe by a file, so links are followed and the others are
  // refused.
  std::error_code unknown;
  if (std::filesystem::exists(path, unknown) && !std::filesystem::is_regular_file(path, unknown)) {
    return invalid_argument(
        "{} exists and is not a regular file; a safetensors file is written to a new or regular one",
        path.string());
  }
  SafetensorsWriter writer;
  writer.path_ = std::filesystem::is_symlink(path, unknown) ? std::filesystem::weakly_canonical(path) : path;
  writer.partial_path_ = writer.path_;
  writer.partial_path_ += ".partial";
  writer.entries_ = std::move(entries);

  std::vector<size_t> order(writer.entries_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return dtype_bytes(writer.entries_[a].dtype) > dtype_bytes(writer.entries_[b].dtype);
  });
  std::string header = R"({"__metadata__":{"format":"pt"})";
  writer.file_offsets_.resize(order.size());
  int64_t offset = 0;
  for (const size_t idx : order) {
    const Entry& entry = writer.entries_[idx];
    header += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          json_string(entry.name), safetensors_name(entry.dtype), fmt::join(entry.shape, ","),
                          offset, offset + entry.num_bytes());
    writer.file_offsets_[idx] = offset;
    offset += entry.num_bytes();
  }
  header += "}";
  header.append((64 - (8 + header.size()) % 64) % 64, ' ');  // data starts on a cache line
  const auto header_bytes = static_cast<int64_t>(8 + header.size());
  for (int64_t& file_offset : writer.file_offsets_) file_offset += header_bytes;

  writer.fd_ = ::open(writer.partial_path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (writer.fd_ < 0) return system_failure("create", writer.partial_path_, errno);
  HADAL_RETURN_IF_ERROR(reserve(writer.fd_, header_bytes + offset, writer.partial_path_));
  std::string prefix(8, '\0');
  for (size_t i = 0; i < 8; ++i)
    prefix[i] = static_cast<char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  prefix += header;
  HADAL_RETURN_IF_ERROR(write_at(writer.fd_, 0, std::as_bytes(std::span(prefix)), writer.partial_path_));
  return writer;
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept
    : path_(std::move(other.path_)),
      partial_path_(std::move(other.partial_path_)),
      entries_(std::move(other.entries_)),
      file_offsets_(std::move(other.file_offsets_)),
      fd_(std::exchange(other.fd_, -1)) {}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  std::error_code ignored;
  std::filesystem::remove(partial_path_, ignored);
}

Result<void> SafetensorsWriter::write(size_t entry_idx, int64_t offset,
                                      std::span<const std::byte> bytes) const {
  HADAL_CHECK_LT(entry_idx, entries_.size());
  HADAL_CHECK_GE(offset, 0);
  HADAL_CHECK_LE(offset + static_cast<int64_t>(bytes.size()), entries_[entry_idx].num_bytes());
  return write_at(fd_, file_offsets_[entry_idx] + offset, bytes, partial_path_);
}

Result<void> SafetensorsWriter::finish() {
  // close reports errors that some file systems detect late (quota, network); afterwards the descriptor is
  // gone.
  const bool closed = ::close(std::exchange(fd_, -1)) == 0;
  const int close_error = errno;
  std::error_code error;
  if (closed) std::filesystem::rename(partial_path_, path_, error);
  if (closed && !error) return {};
  std::error_code ignored;
  std::filesystem::remove(partial_path_, ignored);
  if (!closed) return system_failure("write", partial_path_, close_error);
  return system_failure("rename to", path_, error.value());
}

Result<void> write_safetensors(const std::filesystem::path& path,
                               std::vector<SafetensorsWriter::Entry> entries,
                               std::span<const std::span<const std::byte>> data) {
  HADAL_CHECK_EQ(entries.size(), data.size());
  HADAL_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::create(path, std::move(entries)));
  for (size_t i = 0; i < data.size(); ++i) {
    HADAL_CHECK_EQ(static_cast<int64_t>(data[i].size()), writer.entries()[i].num_bytes());
    HADAL_RETURN_IF_ERROR(writer.write(i, 0, data[i]));
  }
  return writer.finish();
}

}  // namespace hadal
