// Computes the checksum of a file's content as the hub states it, piece by piece. One thread uses a Checksum
// at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace hadal::hub {

class Checksum {
 public:
  // Begins a SHA-256 if the `wanted` checksum has 64 digits. Otherwise it begins git's SHA-1 of a blob of
  // `size` bytes, which is the SHA-1 of "blob SIZE\0" followed by the content.
  Checksum(const std::string& wanted, int64_t size);
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;

  void add(std::span<const std::byte> piece);

  // Ends the computation and returns lower-case hexadecimal digits; nothing may follow.
  std::string finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace hadal::hub
