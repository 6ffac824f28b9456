// Writes safetensors files: the header first, then any part of any tensor in any order, so that files larger
// than memory can be streamed and several threads can fill one file. The format is described in
// model/safetensors.h. create and finish belong to one thread; many threads may call write at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "tensor/dtype.h"

namespace hadal {

class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    DType dtype = DType::kF32;
    std::vector<int64_t> shape;

    int64_t num_bytes() const;
  };

  // Opens `path`.partial, reserves the whole size and writes the header. In the file, tensors of wider types
  // come first, so that every tensor is aligned to its element. The errors are kResourceExhausted when the
  // disk has no room for the file, and kInternal, with the reason, for any other failure of the system.
  static Result<SafetensorsWriter> create(const std::filesystem::path& path, std::vector<Entry> entries);

  SafetensorsWriter(SafetensorsWriter&& other) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&& other) = delete;
  ~SafetensorsWriter();  // removes the partial file if finish() was not called

  const std::vector<Entry>& entries() const { return entries_; }

  // Writes bytes of entries()[entry_idx], starting at byte `offset` of that tensor. Every byte is written
  // once.
  Result<void> write(size_t entry_idx, int64_t offset, std::span<const std::byte> bytes) const;

  // Closes the file and renames it to its final name.
  Result<void> finish();

 private:
  SafetensorsWriter() = default;

  std::filesystem::path path_;
  std::filesystem::path partial_path_;
  std::vector<Entry> entries_;
  std::vector<int64_t> file_offsets_;  // position of each entry's first byte
  int fd_ = -1;
};

// Writes a whole file at once: data[i] is entries[i].num_bytes() bytes. Errors are as above.
Result<void> write_safetensors(const std::filesystem::path& path,
                               std::vector<SafetensorsWriter::Entry> entries,
                               std::span<const std::span<const std::byte>> data);

}  // namespace hadal
