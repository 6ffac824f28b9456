#include "cli/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace hadal::cli {

Result<SafetensorsWriter> SafetensorsWriter::create(const std::filesystem::path& path, std::string_view name,
                                                    int64_t rows, int64_t columns) {
  std::filesystem::path temporary = path;
  temporary += fmt::format(".{}.tmp", ::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    return make_status(StatusCode::kResourceExhausted, "cannot write {}: {}", path.string(),
                       std::strerror(errno));
  }
  SafetensorsWriter writer(path, std::move(temporary), fd, rows * columns);
  std::string header =
      fmt::format("{{\"{}\":{{\"dtype\":\"F32\",\"shape\":[{},{}],\"data_offsets\":[0,{}]}}}}", name, rows,
                  columns, rows * columns * static_cast<int64_t>(sizeof(float)));
  header.resize((header.size() + 7) / 8 * 8, ' ');  // the data starts aligned
  const uint64_t size = header.size();              // little-endian, as this host is
  HADAL_RETURN_IF_ERROR(writer.write_all(&size, sizeof(size)));
  HADAL_RETURN_IF_ERROR(writer.write_all(header.data(), header.size()));
  return writer;
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      fd_(std::exchange(other.fd_, -1)),
      missing_(other.missing_) {}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

Result<void> SafetensorsWriter::append(std::span<const float> values) {
  HADAL_CHECK_LE(static_cast<int64_t>(values.size()), missing_);
  missing_ -= static_cast<int64_t>(values.size());
  return write_all(values.data(), values.size_bytes());
}

Result<void> SafetensorsWriter::commit() {
  HADAL_CHECK_EQ(missing_, 0);
  const bool closed = ::close(std::exchange(fd_, -1)) == 0;
  if (!closed || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    return make_status(StatusCode::kResourceExhausted, "cannot write {}: {}", path_.string(),
                       std::strerror(error));
  }
  return {};
}

Result<void> SafetensorsWriter::write_all(const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::write(fd_, at, size);
    if (written < 0) {
      if (errno == EINTR) continue;
      return make_status(StatusCode::kResourceExhausted, "cannot write {}: {}", path_.string(),
                         std::strerror(errno));
    }
    at += written;
    size -= static_cast<size_t>(written);
  }
  return {};
}

}  // namespace hadal::cli
