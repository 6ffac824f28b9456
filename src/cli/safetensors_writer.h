// Writes one float32 matrix as a safetensors file, row blocks at a time, so that it never has to be in memory
// as a whole. The file appears under its name only once it is complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace hadal::cli {

class SafetensorsWriter {
 public:
  // The only tensor is `name` [rows, columns]. Error: the directory cannot be written to.
  static Result<SafetensorsWriter> create(const std::filesystem::path& path, std::string_view name,
                                          int64_t rows, int64_t columns);
  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) = delete;
  ~SafetensorsWriter();  // removes the unfinished file

  // The next elements in row order. Error: the disk is full.
  Result<void> append(std::span<const float> values);

  // Puts the file in its place. Error: elements are missing, or it cannot be renamed.
  Result<void> commit();

 private:
  SafetensorsWriter(std::filesystem::path path, std::filesystem::path temporary, int fd, int64_t missing)
      : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd), missing_(missing) {}
  Result<void> write_all(const void* data, size_t size);

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int fd_ = -1;
  int64_t missing_ = 0;  // elements
};

}  // namespace hadal::cli
