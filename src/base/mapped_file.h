// MappedFile is a read-only memory mapping of a whole file, which can be moved but not copied. Weights are
// read straight from the mapping, which must outlive every view into it. Any thread may read.
// base/mapping_faults.h describes what happens when a mapped file becomes shorter.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "base/mapping_faults.h"
#include "base/result.h"

namespace hadal {

class MappedFile {
 public:
  // Maps `path`. The errors are kNotFound when it does not exist, and kDataLoss when it is not a readable
  // regular file, or when it is a Git LFS pointer.
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
  MappingRecord record_;  // released before the file is unmapped
};

// Reads a small text file whole, without a mapping. The errors are those of MappedFile::open(), and kDataLoss
// for a file of more than `max_bytes`.
Result<std::string> read_text_file(const std::filesystem::path& path, size_t max_bytes = size_t{256} << 20);

}  // namespace hadal
