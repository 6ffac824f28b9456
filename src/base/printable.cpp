#include "base/printable.h"

#include <fmt/format.h>

#include <algorithm>

namespace hadal {
namespace {

// Returns the index of the byte after the character that begins at `begin`; bytes that are not UTF-8 count as
// characters of at most four bytes.
size_t end_of_character(std::string_view text, size_t begin) {
  const auto continues = [&](size_t at) { return (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U; };
  size_t end = begin + 1;
  while (end < text.size() && end < begin + 4 && continues(end)) ++end;
  return end;
}

// Returns an ASCII character as it stands in a JSON string.
std::string json_escaped(char c) {
  constexpr std::string_view kPlain = "\"\\\n\r\t";
  constexpr std::string_view kLetters = "\"\\nrt";
  if (const size_t at = kPlain.find(c); at != kPlain.npos) return {'\\', kLetters[at]};
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7F ? fmt::format("\\u{:04x}", byte) : std::string(1, c);
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool is_c1 = byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\t') {
      out += "\\t";
    } else if (is_c1) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[++i]));
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string cut_text(std::string_view text, size_t max_chars) {
  size_t end = 0;
  for (size_t chars = 0; end < text.size() && chars < max_chars; ++chars) end = end_of_character(text, end);
  std::string out(text.substr(0, end));
  if (end < text.size()) out += "…";
  return out;
}

std::string shown_text(std::string_view text) {
  std::string out = "\"";
  size_t chars = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = end_of_character(text, at);
    const std::string character =
        end - at == 1 ? json_escaped(text[at]) : std::string(text.substr(at, end - at));
    chars += end - at == 1 ? character.size() : 1;
    if (chars > kShownChars) {
      out += "…";
      break;
    }
    out += character;
    at = end;
  }
  out += '"';
  return out;
}

std::string shown_bytes(size_t bytes) {
  constexpr size_t kKib = 1 << 10;
  constexpr size_t kMib = 1 << 20;
  if (bytes >= kMib) return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / kMib);
  if (bytes >= kKib) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / kKib);
  return fmt::format("{} bytes", bytes);
}

bool is_visible_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7F; });
}

}  // namespace hadal
