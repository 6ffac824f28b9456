#include "text/grammar/expression_depth.h"

#include <fmt/format.h>

#include <algorithm>

namespace hadal {
namespace {

// Returns the length of the repetition modifier at the beginning of `text`: *, +, ? or {m,n}; 0 if there is
// none.
size_t modifier_length(std::string_view text) {
  if (text.empty()) return 0;
  if (text[0] == '*' || text[0] == '+' || text[0] == '?') return 1;
  if (text[0] != '{') return 0;
  const size_t end = text.find_first_not_of("0123456789,", 1);
  return end != text.npos && end > 1 && text[end] == '}' ? end + 1 : 0;
}

// Returns the greatest number of modifiers in a row outside of classes ([*+?] has none).
int modifiers_in_a_row(std::string_view regex) {
  int most = 0;
  int count = 0;
  bool is_class = false;
  for (size_t i = 0; i < regex.size();) {
    const size_t length = is_class ? 0 : modifier_length(regex.substr(i));
    most = std::max(most, count = length > 0 ? count + 1 : 0);
    if (regex[i] == '[') is_class = true;
    if (regex[i] == ']') is_class = false;
    i += length > 0 ? length : regex[i] == '\\' ? 2 : 1;
  }
  return most;
}

}  // namespace

std::string why_groups_are_too_deep(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\')
      ++i;
    else if (text[i] == '(')
      deepest = std::max(deepest, ++depth);
    else if (text[i] == ')' && depth > 0)
      --depth;
  }
  if (deepest <= kMaxGroupDepth) return {};
  return fmt::format("its groups are nested {} deep; at most {} are allowed", deepest, kMaxGroupDepth);
}

std::string why_regex_is_too_deep(std::string_view regex) {
  if (std::string why = why_groups_are_too_deep(regex); !why.empty()) return why;
  const int modifiers = modifiers_in_a_row(regex);
  if (modifiers <= kMaxModifiers) return {};
  return fmt::format("it has {} repetition modifiers in a row; at most {} are allowed", modifiers,
                     kMaxModifiers);
}

}  // namespace hadal
