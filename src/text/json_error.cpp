#include "text/json_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <boost/json.hpp>

#include "base/printable.h"
#include "text/json_members.h"
#include "text/utf8.h"

namespace hadal {
namespace {

namespace json = boost::json;

constexpr size_t kContextBytes = 24;
constexpr std::string_view kBlanks = " \t\r\n";

// Returns the last few bytes before `at`, without cutting a character.
std::string_view before(std::string_view text, size_t at) {
  size_t begin = at - std::min(at, kContextBytes);
  while (begin < at && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U) ++begin;
  return text.substr(begin, at - begin);
}

// Returns the character at `at` as a text.
std::string_view character(std::string_view text, size_t at) {
  size_t end = at + 1;
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) ++end;
  return text.substr(at, end - at);
}

constexpr size_t kEscapeBytes = 6;  // \u and four digits

// Returns the second of the four digits of the escape at `begin`, in lower case, if the escape is a surrogate
// (\ud800 to \udfff). Otherwise returns '\0'.
char surrogate_digit(std::string_view text, size_t begin) {
  const std::string_view escape = text.substr(begin, kEscapeBytes);
  if (escape.size() < kEscapeBytes || !escape.starts_with("\\u")) return '\0';
  if (escape[2] != 'd' && escape[2] != 'D') return '\0';
  const char digit =
      escape[3] >= 'A' && escape[3] <= 'F' ? static_cast<char>(escape[3] + ('a' - 'A')) : escape[3];
  return std::string_view("89abcdef").find(digit) == std::string_view::npos ? '\0' : digit;
}

// Tells whether the parser stopped at `at` because a surrogate lacks its other half. The parser stops after
// the lone surrogate, or in the escape that follows it.
bool is_after_lone_surrogate(std::string_view text, size_t at) {
  const size_t begin = text.substr(0, at).rfind("\\u");
  if (begin == text.npos || at > begin + kEscapeBytes + 1) return false;
  if (begin > 0 && text[begin - 1] == '\\') return false;  // an escaped backslash and the letter u
  const auto is_high = [](char digit) { return digit >= '8' && digit <= 'b'; };
  const char digit = surrogate_digit(text, begin);
  const bool follows_high = begin >= kEscapeBytes && is_high(surrogate_digit(text, begin - kEscapeBytes));
  if (digit >= 'c') return !follows_high;
  return is_high(digit) || (follows_high && at < begin + kEscapeBytes);
}

// Returns what is allowed instead, for mistakes that the neighbouring bytes reveal; otherwise an empty text.
std::string_view advice(std::string_view text, size_t at) {
  const char found = text[at];
  const size_t last = at == 0 ? text.npos : text.find_last_not_of(kBlanks, at - 1);
  const char previous = last == text.npos ? '\0' : text[last];
  if (is_after_lone_surrogate(text, at))
    return "; a surrogate is half of a character, so \\ud800 to \\udbff must stand before one of \\udc00 to "
           "\\udfff";
  if (at != 0 && text[at - 1] == '\\')
    return "; after a backslash a string may have \", \\, /, b, f, n, r, t or u and four hexadecimal digits";
  if (static_cast<unsigned char>(found) < 0x20 && kBlanks.find(found) == kBlanks.npos)
    return "; control characters must be written as \\u and four hexadecimal digits";
  if ((found == '\n' || found == '\r' || found == '\t'))
    return "; inside a string, line breaks and tabs must be written as \\n, \\r and \\t";
  if (found == '\'') return "; keys and texts must be in double quotes";
  if (previous == ',' && (found == '}' || found == ']')) return "; nothing may end after a comma";
  if (previous == '{' || (previous == ',' && is_ascii_letter(found)))
    return "; keys must be in double quotes";
  if (previous == '"') return "; after a key comes a colon, and after a value a comma or the closing bracket";
  if (previous == '}' || previous == ']')
    return "; after a value comes a comma, the closing bracket or the end of the text";
  if (previous == ':' && is_ascii_letter(found))
    return "; a value must be a string, a number, an object, a list, true, false or null";
  return "";
}

}  // namespace

std::string json_syntax_error(std::string_view text, size_t at) {
  if (at >= text.size() || text.find_first_not_of(kBlanks, at) == text.npos)
    return fmt::format("it ends at byte {}, before its value is complete", text.size());
  // The text may be invalid UTF-8, which an answer must not contain.
  const auto quoted = [](std::string_view part) { return shown_text(replace_invalid_utf8(part)); };
  if (text.find_first_not_of(kBlanks) == at) {
    return fmt::format(
        "it begins with {}; a value must be a string in double quotes, a number, an object, a list, "
        "true, false or null",
        quoted(character(text, at)));
  }
  return fmt::format("{} at byte {} cannot follow {}{}", quoted(character(text, at)), at,
                     quoted(before(text, at)), advice(text, at));
}

size_t json_depth(std::string_view text) {
  size_t depth = 0;
  size_t deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '[' || c == '{')) {
      deepest = std::max(deepest, ++depth);
    } else if (!in_string && (c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

Result<json::value> parse_json_text(std::string_view text, std::string_view field, size_t max_depth) {
  if (const size_t valid = valid_utf8_bytes(text); valid < text.size()) {
    return invalid_argument("{}: invalid UTF-8 at byte {} (0x{:02x}); must be JSON in UTF-8", field, valid,
                            static_cast<unsigned char>(text[valid]));
  }
  HADAL_RETURN_IF_ERROR(check_json_members(text, fmt::format("{}: its JSON", field), max_depth));
  json::parse_options options;
  options.max_depth = max_depth;
  json::stream_parser parser({}, options);
  json::error_code failure;
  const size_t taken = parser.write_some(text.data(), text.size(), failure);
  if (!failure && text.find_first_not_of(kBlanks, taken) != text.npos) failure = json::error::extra_data;
  if (!failure) parser.finish(failure);
  if (!failure) return parser.release();
  if (failure == json::error::too_deep) {
    return invalid_argument("{}: its JSON is nested {} levels deep; at most {} are allowed", field,
                            json_depth(text), max_depth);
  }
  return invalid_argument("{}: not JSON: {}", field, json_syntax_error(text, taken));
}

std::string shown(const json::value& value) {
  if (const double* number = value.if_double()) {
    if (std::isfinite(*number)) return fmt::format("{}", *number);  // 0.5, not 5E-1
    return *number > 0 ? "a number above 1.8e308" : "a number below -1.8e308";
  }
  if (const json::string* text = value.if_string()) return shown_text({text->data(), text->size()});
  if (const json::array* list = value.if_array(); list != nullptr && list->size() > 16) {
    return fmt::format("a list of {} values", list->size());
  }
  if (const json::object* object = value.if_object(); object != nullptr && object->size() > 8) {
    return "an object";
  }
  // Only the beginning is written, because the value may be megabytes long.
  char text[4 * kShownChars + 8];
  json::serializer serializer;
  serializer.reset(&value);
  const auto part = serializer.read(text, sizeof(text));
  std::string_view begin(part.data(), part.size());
  if (!serializer.done()) begin = begin.substr(0, valid_utf8_bytes(begin));
  return cut_text(begin, kShownChars);
}

}  // namespace hadal
