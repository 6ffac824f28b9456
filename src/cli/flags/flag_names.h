// Finds the flag that a word of the command line means: by its full name, by a unique beginning of the name,
// or by another spelling. The functions are pure.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "cli/flags/flag_table.h"

namespace hadal::cli {

// Returns "hadal serve", as errors name a command.
std::string command_name(Command command);

// Returns the row of the flag that `spelled` ("--tp", "-c") means in a command, never the row of an alias.
// Command kNone has the flags of all commands. The errors name `spelled` and say that it is a flag of another
// engine (and what to use here), a flag of other commands only, ambiguous, or unknown (and which flag is
// nearest).
Result<const Flag*> resolve_name(Command command, std::string_view spelled);

}  // namespace hadal::cli
