// Reads stored values from the files again, not through the mappings. Every value is read only once, and then
// faulting in mapped pages and unmapping them afterwards takes longer than the operating system's copy
// (unmapping alone takes 0.03 s per GB). Only the loader of device weights includes this.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/regular_file.h"

namespace hadal {

// Reports a file that ends early or cannot be read; the message names it.
class ShardReadError : public Error {
 public:
  using Error::Error;
};

// Reads ranges of mapped files through its own descriptors. read() may be called from any thread. Throws
// ShardReadError.
class ShardReader {
 public:
  // The mappings stay with the caller and outlive the reader; nothing is read through them.
  explicit ShardReader(std::span<const MappedFile> shards);
  ShardReader(const ShardReader&) = delete;
  ShardReader& operator=(const ShardReader&) = delete;

  // Copies `range`, which lies in one of the mappings, to `out`. Memory outside all mappings is copied
  // directly.
  void read(std::span<const std::byte> range, std::byte* out) const;

 private:
  struct Shard {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    RegularFile file;
    std::string path;
  };

  std::vector<Shard> shards_;  // by address
};

}  // namespace hadal
