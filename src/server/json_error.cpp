#include "server/json_error.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/printable.h"
#include "text/utf8.h"

namespace hadal::server {
namespace {

constexpr size_t kContextBytes = 24;
constexpr std::string_view kBlanks = " \t\r\n";

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Returns the last bytes before `at`, in whole characters.
std::string_view before(std::string_view body, size_t at) {
  size_t begin = at - std::min(at, kContextBytes);
  while (begin < at && (static_cast<unsigned char>(body[begin]) & 0xC0U) == 0x80U) ++begin;
  return body.substr(begin, at - begin);
}

// Returns the character at `at` as a text.
std::string_view character(std::string_view body, size_t at) {
  size_t end = at + 1;
  while (end < body.size() && (static_cast<unsigned char>(body[end]) & 0xC0U) == 0x80U) ++end;
  return body.substr(at, end - at);
}

// Returns what is allowed instead, for mistakes that can be told from the neighbouring bytes; otherwise
// nothing.
std::string_view advice(std::string_view body, size_t at) {
  const char found = body[at];
  const size_t last = at == 0 ? body.npos : body.find_last_not_of(kBlanks, at - 1);
  const char previous = last == body.npos ? '\0' : body[last];
  if (at != 0 && body[at - 1] == '\\')
    return "; behind a backslash a string may have \", \\, /, b, f, n, r, t or u and four hexadecimal digits";
  if (static_cast<unsigned char>(found) < 0x20 && kBlanks.find(found) == kBlanks.npos)
    return "; control characters must be written as \\u and four hexadecimal digits";
  if ((found == '\n' || found == '\r' || found == '\t'))
    return "; inside a string, line breaks and tabs must be written as \\n, \\r and \\t";
  if (found == '\'') return "; keys and texts must be in double quotes";
  if (previous == ',' && (found == '}' || found == ']')) return "; nothing may end behind a comma";
  if (previous == '{' || (previous == ',' && is_letter(found))) return "; keys must be in double quotes";
  if (previous == '"')
    return "; behind a key comes a colon, and behind a value a comma or the closing bracket";
  if (previous == ':' && is_letter(found))
    return "; a value must be a string, a number, an object, a list, true, false or null";
  return "";
}

}  // namespace

std::string json_syntax_error(std::string_view body, size_t at) {
  if (at >= body.size() || body.find_first_not_of(kBlanks, at) == body.npos)
    return fmt::format("it ends at byte {}, before its value is complete", body.size());
  return fmt::format("{} at byte {} cannot follow {}{}", shown_text(character(body, at)), at,
                     at == 0 ? "the beginning" : shown_text(before(body, at)), advice(body, at));
}

}  // namespace hadal::server
