// Finds where classes and escapes end by PCRE2's rules; PCRE2 itself then decides which characters they
// contain.
#include <algorithm>
#include <charconv>
#include <system_error>

#include "text/stop/stop_regex_syntax.h"
#include "text/utf8.h"

namespace hadal {
namespace {

// If one of these begins with another, the longer one comes first.
constexpr StopRegexRefusal kRefusedEscapes[] = {
    {"\\g<", "recursion is"},
    {"\\g'", "recursion is"},
    {"\\g", "back-references are"},
    {"\\k", "back-references are"},
    {"\\K", "\\K is"},
    {"\\G", "\\G is"},
    {"\\R", "\\R is"},
    {"\\X", "\\X is"},
    {"\\C", "\\C is"},
    {"\\Q", "quoting is"},
    {"\\E", "quoting is"},
};

constexpr std::string_view kOneLetterEscapes = "AzZbBaefnrtdDhHsSvVwW";
constexpr std::string_view kClassEscapes = "dDhHsSvVwW";
constexpr std::string_view kDigits = "0123456789abcdefABCDEF";
constexpr std::string_view kOctalDigits = "01234567";
constexpr uint32_t kMaxCodePoint = 0x10FFFF;

char byte_at(std::string_view pattern, size_t at) {
  return at < pattern.size() ? pattern[at] : '\0';
}

// Returns the bytes of a name like [:alpha:] at `at`, or 1 if the bracket begins none.
size_t posix_name_size(std::string_view pattern, size_t at) {
  const char terminator = byte_at(pattern, at + 1);
  if (terminator != ':' && terminator != '.' && terminator != '=') return 1;
  for (size_t i = at + 2; i + 1 < pattern.size(); ++i) {
    const char c = pattern[i];
    const char next = pattern[i + 1];
    if (c == '\\' && (next == ']' || next == '\\')) {
      ++i;
    } else if ((c == '[' && next == terminator) || c == ']') {
      return 1;
    } else if (c == terminator && next == ']') {
      return i + 2 - at;
    }
  }
  return 1;
}

// ClassItem is one item of a character class: a range of characters low … high, or a class within the class.
struct ClassItem {
  size_t size = 1;  // bytes
  bool is_char = true;
  uint32_t low = 0;
  uint32_t high = kMaxCodePoint;
};

ClassItem class_item(std::string_view text, size_t begin) {
  const auto literal = [&](size_t at) {
    const DecodedChar c = decode_valid_utf8(text.data() + at);
    return ClassItem{.size = at + c.num_bytes - begin, .low = c.code_point, .high = c.code_point};
  };
  if (text[begin] == '[') {
    const size_t size = posix_name_size(text, begin);
    if (size > 1) return {.size = size, .is_char = false};
  }
  if (text[begin] != '\\') return literal(begin);
  const char c = byte_at(text, begin + 1);
  const bool is_letter = (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
  const bool is_digit = c >= '0' && c <= '9';
  if (!is_letter && !is_digit) return literal(begin + 1);
  if (kClassEscapes.find(c) != kClassEscapes.npos) return {.size = 2, .is_char = false};
  const size_t brace = byte_at(text, begin + 2) == '{' ? text.find('}', begin) : text.npos;
  if (c == 'p' || c == 'P') {
    return {.size = brace == text.npos ? 3 : brace + 1 - begin, .is_char = false};
  }
  if (brace != text.npos && (c == 'x' || c == 'o' || c == 'N')) {
    const size_t first = begin + (c == 'N' ? 5 : 3);  // \N{U+…}
    ClassItem item{.size = brace + 1 - begin};
    if (first >= brace) return item;
    uint32_t value = 0;
    const char* const end = text.data() + brace;
    const auto [at, error] = std::from_chars(text.data() + first, end, value, c == 'o' ? 8 : 16);
    if (error == std::errc() && at == end && value <= kMaxCodePoint) item.low = item.high = value;
    return item;
  }
  size_t size = c == 'c' ? 3 : 2;
  const std::string_view digits = c == 'x' ? kDigits : is_digit ? kOctalDigits : "";
  while (size < 4 && digits.find(byte_at(text, begin + size)) != digits.npos) ++size;
  return {.size = size, .high = 0777};  // none of these escapes has a larger value
}

}  // namespace

uint64_t stop_regex_range_chars(std::string_view text) {
  const size_t end = text.size() - 1;  // the closing bracket
  uint64_t count = 0;
  for (size_t at = byte_at(text, 1) == '^' ? 2 : 1; at < end;) {
    const ClassItem first = class_item(text, at);
    at += first.size;
    if (byte_at(text, at) != '-' || at + 1 >= end) continue;
    const ClassItem last = class_item(text, at + 1);
    if (!first.is_char || !last.is_char) continue;
    at += 1 + last.size;
    if (last.high >= first.low) count += last.high - first.low + 1;
  }
  return count;
}

Status stop_regex_refusal(std::string_view what, std::string_view construct, size_t at) {
  return invalid_argument("{} not supported ({} at byte {})", what, construct, at);
}

Result<size_t> stop_regex_class_size(std::string_view pattern, size_t begin) {
  size_t at = begin + 1;
  if (byte_at(pattern, at) == '^') ++at;
  for (bool is_first = true; is_first || byte_at(pattern, at) != ']'; is_first = false) {
    if (at >= pattern.size()) return invalid_argument("the class at byte {} has no closing bracket", begin);
    const char next = byte_at(pattern, at + 1);
    if (pattern[at] == '\\') {
      if (next == 'Q' || next == 'E') {
        return stop_regex_refusal("quoting is", pattern.substr(at, 2), at);
      }
      at += next == 'c' ? 3 : 2;
    } else {
      at += pattern[at] == '[' ? posix_name_size(pattern, at) : 1;
    }
  }
  const std::string_view text = pattern.substr(begin, at + 1 - begin);
  if (text == "[[:<:]]" || text == "[[:>:]]") {
    return stop_regex_refusal("a word's beginning or end is", text, begin);
  }
  return text.size();
}

Result<size_t> stop_regex_escape_size(std::string_view pattern, size_t begin) {
  if (begin + 1 == pattern.size()) return invalid_argument("the pattern ends in a backslash");
  const std::string_view rest = pattern.substr(begin);
  for (const StopRegexRefusal& refusal : kRefusedEscapes) {
    if (rest.starts_with(refusal.begins)) return stop_regex_refusal(refusal.what, rest.substr(0, 2), begin);
  }
  const char c = rest[1];
  if (c >= '1' && c <= '9') return stop_regex_refusal("back-references are", rest.substr(0, 2), begin);
  if (kOneLetterEscapes.find(c) != kOneLetterEscapes.npos) return 2;
  // Counts up to two of the digits.
  const auto digits = [&](std::string_view allowed) -> size_t {
    size_t size = 2;
    while (size < std::min<size_t>(rest.size(), 4) && allowed.find(rest[size]) != allowed.npos) ++size;
    return size;
  };
  const bool is_braced = byte_at(rest, 2) == '{';
  const size_t braced_size = std::min(rest.find('}', 2), rest.size() - 1) + 1;
  switch (c) {
    case 'N':
      if (rest.starts_with("\\N{U+")) return braced_size;
      if (!is_braced || byte_at(rest, rest.find_first_not_of("0123456789,", 3)) == '}') return 2;
      return invalid_argument("the escape \\N{{}} at byte {} has no code point", begin);
    case '0':
      return digits(kOctalDigits);
    case 'x':
      return is_braced ? braced_size : digits(kDigits);
    case 'o':
      if (is_braced) return braced_size;
      return invalid_argument("the escape \\o at byte {} has no braces", begin);
    case 'p':
    case 'P':
      if (is_braced) return braced_size;
      if (rest.size() > 2 && (rest[2] | 0x20) >= 'a' && (rest[2] | 0x20) <= 'z') return 3;
      return invalid_argument("the escape \\{} at byte {} has no property", c, begin);
    case 'c':
      if (rest.size() > 2 && rest[2] >= 0x20 && rest[2] <= 0x7e) return 3;
      return invalid_argument("the escape \\c at byte {} has no character", begin);
    default:
      return invalid_argument("the escape \\{} at byte {} is unknown", c, begin);
  }
}

}  // namespace hadal
