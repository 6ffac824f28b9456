// Limits how deeply a client's expression is nested, because functions and destructors of the library call
// themselves once for each level.
#pragma once

#include <string>
#include <string_view>

namespace hadal {

inline constexpr int kMaxGroupDepth = 64;
inline constexpr int kMaxModifiers = 2;  // in a row: a repetition and the ? that makes it lazy

// Returns why `text` is nested too deeply ("its groups are nested …"); empty if it is not. Parentheses in
// literals and classes count as groups, because the text is not parsed.
std::string why_groups_are_too_deep(std::string_view text);

// Does the same for a regular expression, in which successive repetition modifiers count as levels, too.
std::string why_regex_is_too_deep(std::string_view regex);

}  // namespace hadal
