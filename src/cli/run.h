// Finds the command, parses its flags, runs it and determines the exit code.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"
#include "cli/flags/flag_table.h"
#include "cli/options.h"

namespace hadal::cli {

// kExitUsage means that the command line is wrong, which includes the flags in a --config file. Any fault of
// another file or of a directory that it names gives kExitFailure.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

// Returns the command that `words` begin with, and how many words its name has. A missing command is an
// error, and so is an unknown one, for which the error names the nearest command if there is one.
Result<std::pair<Command, size_t>> find_command(std::span<const std::string> words);

// Runs `words` (argv without the program's name) and returns the exit code. It never throws; an error is one
// line on stderr.
int run(std::span<const std::string> words, const Environment& environment);

}  // namespace hadal::cli
