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

// Returns the row that `spelled` ("--tp", "-c") means in a command; it is never an alias. Command kNone knows
// the flags of all commands. The errors, which name `spelled`, are a name of another engine (with what to use
// here), one that only other commands have, one that is ambiguous, and an unknown one (with the nearest).
Result<const Flag*> resolve_name(Command command, std::string_view spelled);

}  // namespace hadal::cli
