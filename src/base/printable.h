// Text of unknown origin, made fit for one line of a log or of a terminal.
#pragma once

#include <string>
#include <string_view>

namespace hadal {

// `text` with its control bytes written out (\n, \x1b), so that a value in an error line neither breaks the
// line nor reaches the terminal as a command.
std::string printable(std::string_view text);

}  // namespace hadal
