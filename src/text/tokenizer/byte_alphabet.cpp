#include "text/tokenizer/byte_alphabet.h"

#include "text/utf8.h"

namespace hadal {

ByteAlphabet::ByteAlphabet() {
  byte_of_.fill(-1);
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const uint32_t character = printable ? byte : next++;
    character_of_[byte] = static_cast<uint16_t>(character);
    byte_of_[character] = static_cast<int16_t>(byte);
  }
}

std::optional<std::string> ByteAlphabet::to_bytes(std::string_view token) const {
  std::string bytes;
  bytes.reserve(token.size());
  for (const char *at = token.data(), *end = at + token.size(); at != end;) {
    const DecodedChar c = decode_valid_utf8(at);
    if (c.code_point >= kLimit || byte_of_[c.code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte_of_[c.code_point]));
    at += c.num_bytes;
  }
  return bytes;
}

std::string ByteAlphabet::to_token(std::string_view bytes) const {
  std::string token;
  for (const char byte : bytes) append_utf8(token, character_of_[static_cast<unsigned char>(byte)]);
  return token;
}

}  // namespace hadal
