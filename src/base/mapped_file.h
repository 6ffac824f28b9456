// A read-only memory mapping of a whole file, move-only. Weights are used straight from it; the mapping must
// outlive every view into it. Any thread may read.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "base/result.h"

namespace hadal {

class MappedFile {
 public:
  // Maps `path`. Errors: kNotFound when it does not exist, kDataLoss when it is not a readable regular file,
  // or a Git LFS pointer in its place.
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// The whole file as a string; for small text files. Errors as above; `max_bytes` guards against absurd sizes.
Result<std::string> read_text_file(const std::filesystem::path& path, size_t max_bytes = size_t{256} << 20);

}  // namespace hadal
