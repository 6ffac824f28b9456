#include "text/utf8.h"

#include <cstring>

namespace hadal {

Utf8PrefixInfo classify_utf8_prefix(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {Utf8Prefix::kCharacter, 1};
  // The second byte's range excludes overlong forms, surrogates and values beyond U+10FFFF (Unicode 15, table
  // 3-7).
  uint32_t num_bytes = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    num_bytes = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    num_bytes = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    num_bytes = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Utf8Prefix::kInvalid, 1};
  }
  for (uint32_t i = 1; i < num_bytes; ++i) {
    if (i == text.size()) return {Utf8Prefix::kIncomplete, i};
    if (byte(i) < low || byte(i) > high) return {Utf8Prefix::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Prefix::kCharacter, num_bytes};
}

namespace {

// Returns the length of the ASCII run at the front.
size_t ascii_prefix(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080ULL) != 0) break;
  }
  while (i < text.size() && static_cast<unsigned char>(text[i]) < 0x80) ++i;
  return i;
}

}  // namespace

size_t valid_utf8_bytes(std::string_view text) {
  size_t at = 0;
  while (true) {
    at += ascii_prefix(text.substr(at));
    if (at == text.size()) return at;
    const auto prefix = classify_utf8_prefix(text.substr(at));
    if (prefix.kind != Utf8Prefix::kCharacter) return at;
    at += prefix.num_bytes;
  }
}

bool is_valid_utf8(std::string_view text) {
  return valid_utf8_bytes(text) == text.size();
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 16);
  while (true) {
    const size_t ascii = ascii_prefix(text);
    out.append(text.substr(0, ascii));
    text.remove_prefix(ascii);
    if (text.empty()) return out;
    const auto prefix = classify_utf8_prefix(text);
    out.append(prefix.kind == Utf8Prefix::kCharacter ? text.substr(0, prefix.num_bytes)
                                                     : kReplacementCharacter);
    text.remove_prefix(prefix.num_bytes);
  }
}

void append_utf8(std::string& out, uint32_t code_point) {
  const auto push = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xC0 | code_point >> 6);
    push(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    push(0xE0 | code_point >> 12);
    push(0x80 | (code_point >> 6 & 0x3F));
    push(0x80 | (code_point & 0x3F));
  } else {
    push(0xF0 | code_point >> 18);
    push(0x80 | (code_point >> 12 & 0x3F));
    push(0x80 | (code_point >> 6 & 0x3F));
    push(0x80 | (code_point & 0x3F));
  }
}

}  // namespace hadal
