// Makes text of unknown origin fit for one line of a log or of a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hadal {

// Returns `text` with its control bytes written out (\n, \x1b), so that a value in an error line can neither
// break the line nor control the terminal.
std::string printable(std::string_view text);

// An error repeats at most this many characters of a client's value or name.
inline constexpr size_t kShownChars = 64;

// Returns the first `max_chars` characters of `text` (UTF-8), with an ellipsis where something was cut.
// Everything that an error repeats goes through cut_text() or shown_text(), because an answer must not grow
// with the request.
std::string cut_text(std::string_view text, size_t max_chars = kShownChars);

// Returns `text` (UTF-8) in double quotes, as JSON writes it, cut after kShownChars characters. An escape
// counts as the characters that it is written with, and is never cut.
std::string shown_text(std::string_view text);

// Formats a number of bytes in the largest unit (MiB, KiB or bytes) that gives at least 1: "1.5 MiB", "10.0
// KiB", "17 bytes".
std::string shown_bytes(size_t bytes);

// Tells whether every byte is a printable ASCII character other than a space.
bool is_visible_ascii(std::string_view text);

}  // namespace hadal
