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

// The command line alone decides between 1 and 2: whatever is wrong with a file or directory that it names,
// the exit code is kExitFailure. The flags in a --config file are a part of the command line.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

// Returns the command that `words` begin with, and how many words its name has. It is an error if there is no
// command, or an unknown one (the nearest one is named).
Result<std::pair<Command, size_t>> find_command(std::span<const std::string> words);

// Runs `words` (argv without the program's name) and returns the exit code. It never throws; an error is one
// line on stderr.
int run(std::span<const std::string> words, const Environment& environment);

}  // namespace hadal::cli
