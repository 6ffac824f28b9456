// These are basic UTF-8 functions. Those marked "valid" expect text that is already known to be UTF-8 and do
// not check it again; call replace_invalid_utf8 first for text from outside.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hadal {

struct DecodedChar {
  uint32_t code_point;
  uint32_t num_bytes;
};

inline bool is_ascii_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Decodes the character at `text`, which is valid UTF-8 and points at the first byte of a character.
inline DecodedChar decode_valid_utf8(const char* text) {
  const auto* s = reinterpret_cast<const unsigned char*>(text);
  if (s[0] < 0x80) return {s[0], 1};
  if (s[0] < 0xE0) return {(s[0] & 0x1FU) << 6 | (s[1] & 0x3FU), 2};
  if (s[0] < 0xF0) return {(s[0] & 0x0FU) << 12 | (s[1] & 0x3FU) << 6 | (s[2] & 0x3FU), 3};
  return {(s[0] & 0x07U) << 18 | (s[1] & 0x3FU) << 12 | (s[2] & 0x3FU) << 6 | (s[3] & 0x3FU), 4};
}

// Returns the beginning of the character that ends just before `text`, which is valid UTF-8.
inline const char* previous_valid_utf8(const char* text) {
  do --text;
  while ((static_cast<unsigned char>(*text) & 0xC0U) == 0x80U);
  return text;
}

// Says what `text` (not empty) begins with: a whole character, a maximal invalid subpart, or an incomplete
// character at the end of the text.
enum class Utf8Prefix { kCharacter, kInvalid, kIncomplete };
struct Utf8PrefixInfo {
  Utf8Prefix kind;
  uint32_t num_bytes;
};
Utf8PrefixInfo classify_utf8_prefix(std::string_view text);

// Returns how many bytes precede the first byte that is not part of a whole character, or all if there is no
// such byte.
size_t valid_utf8_bytes(std::string_view text);
bool is_valid_utf8(std::string_view text);

// Returns `text` with every maximal invalid subpart replaced by one U+FFFD (Unicode 15, section 3.9).
std::string replace_invalid_utf8(std::string_view text);

void append_utf8(std::string& out, uint32_t code_point);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace hadal
