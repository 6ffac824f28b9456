// Owns the last line of a terminal on stderr where a command shows its progress, so that log lines never
// share it. Any thread may call it.
#pragma once

#include <string>
#include <string_view>

namespace hadal {

// Shows `text` (one line) in place of the previous one. An empty text removes the line.
void set_status_line(std::string text);

// Writes whole lines to stderr; a status line moves below them. Errors of writing are ignored.
void write_above_status_line(std::string_view lines);

}  // namespace hadal
