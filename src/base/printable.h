// Makes text of unknown origin fit for one line of a log or of a terminal.
#pragma once

#include <string>
#include <string_view>

namespace hadal {

// Returns `text` with its control bytes written out ( , \x1b), so that a value in an error line neither
// breaks the line nor reaches the terminal as a command.
std::string printable(std::string_view text);

// Tells whether every byte is a printable ASCII character other than a space.
bool is_visible_ascii(std::string_view text);

}  // namespace hadal
