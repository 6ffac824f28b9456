// Finds the flag that a word of the command line means: by its full name, by a beginning of it that is
// unique, or by another spelling. The functions are pure.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "cli/flags/flag_table.h"

namespace hadal::cli {

// Returns "hadal serve", as errors name a command.
std::string command_name(Command command);

// Returns the row of the flag that `spelled` ("--tp", "-c") means in a command, never the row of an alias.
// Command kNone has the flags of all commands. The errors name `spelled`: it is a flag of another engine
// (they say what to use here), a flag of other commands only, ambiguous, or unknown (they suggest the
// nearest).
Result<const Flag*> resolve_name(Command command, std::string_view spelled);

}  // namespace hadal::cli
