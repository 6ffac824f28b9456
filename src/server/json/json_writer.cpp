#include "server/json/json_writer.h"

#include <array>
#include <charconv>
#include <cmath>

namespace hadal::server {
namespace {

constexpr std::array<bool, 256> make_plain() {
  std::array<bool, 256> plain{};
  for (size_t i = 0; i < plain.size(); ++i) plain[i] = i >= 0x20 && i != '"' && i != '\\' && i != 0x7F;
  return plain;
}
constexpr std::array<bool, 256> kPlain = make_plain();

void append_escape(std::string& out, unsigned char c) {
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      constexpr char kHex[] = "0123456789abcdef";
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
  }
}

template <typename T>
void append_number(std::string& out, T value) {
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  out.append(buffer, end);
}

// "1e+20" and "5" are JSON numbers already; an integral value keeps a ".0", so that typed readers parse a
// float.
template <typename T>
void append_real(std::string& out, T value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  const size_t begin = out.size();
  append_number(out, value);
  if (out.find_first_of(".e", begin) == std::string::npos) out += ".0";
}

}  // namespace

void append_json_string(std::string& out, std::string_view utf8) {
  out += '"';
  size_t begin = 0;
  for (size_t i = 0; i < utf8.size(); ++i) {
    const auto c = static_cast<unsigned char>(utf8[i]);
    if (kPlain[c]) continue;
    out.append(utf8, begin, i - begin);
    append_escape(out, c);
    begin = i + 1;
  }
  out.append(utf8, begin, utf8.size() - begin);
  out += '"';
}

void append_json_number(std::string& out, int64_t value) {
  append_number(out, value);
}
void append_json_number(std::string& out, double value) {
  append_real(out, value);
}
void append_json_number(std::string& out, float value) {
  append_real(out, value);
}

void append_json_ids(std::string& out, std::span<const int32_t> ids) {
  out += '[';
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ',';
    append_number(out, ids[i]);
  }
  out += ']';
}

std::string_view utf8_prefix(std::string_view utf8, size_t max_bytes) {
  if (utf8.size() <= max_bytes) return utf8;
  while (max_bytes > 0 && (static_cast<unsigned char>(utf8[max_bytes]) & 0xC0U) == 0x80U) --max_bytes;
  return utf8.substr(0, max_bytes);
}

}  // namespace hadal::server
