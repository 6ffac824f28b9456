// Translates the byte-level alphabet of GPT-2 and its successors: every byte is written as one printable
// character, so that vocabularies are text. Bytes that are printable in Latin-1 are written as those
// characters, and the others as characters from U+0100 on.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hadal {

class ByteAlphabet {
 public:
  ByteAlphabet();

  // Returns the bytes that `token` represents, or nothing if a character is not in the alphabet. `token` is
  // valid UTF-8.
  std::optional<std::string> to_bytes(std::string_view token) const;
  std::string to_token(std::string_view bytes) const;

 private:
  std::array<uint16_t, 256> character_of_;  // code points, all below kLimit
  static constexpr uint32_t kLimit = 0x144;
  std::array<int16_t, kLimit> byte_of_;  // -1: not in the alphabet
};

}  // namespace hadal
