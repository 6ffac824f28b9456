// Everything behind main: which command, its flags, its exit code.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"
#include "cli/flag_table.h"
#include "cli/options.h"

namespace hadal::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

// The command that `words` begin with, and how many words name it. Errors: no command, an unknown one (the
// nearest is named), one that this version does not have.
Result<std::pair<Command, size_t>> find_command(std::span<const std::string> words);

// Runs `words` (argv without the program's name). Never throws; errors are one line on stderr.
int run(std::span<const std::string> words, const Environment& environment);

}  // namespace hadal::cli
