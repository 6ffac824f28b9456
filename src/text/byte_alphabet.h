// The byte-level alphabet of GPT-2 and its successors: every byte is written as one printable character, so
// that vocabularies are text. Bytes that are printable in Latin-1 stand for themselves, the others for U+0100
// on.
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

  // The bytes that `token` writes, or nothing if a character is not of the alphabet. `token` is valid UTF-8.
  std::optional<std::string> to_bytes(std::string_view token) const;
  std::string to_token(std::string_view bytes) const;

 private:
  std::array<uint16_t, 256> character_of_;  // code points, all below kLimit
  static constexpr uint32_t kLimit = 0x144;
  std::array<int16_t, kLimit> byte_of_;  // -1: not of the alphabet
};

}  // namespace hadal
