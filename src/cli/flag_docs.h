// --help and docs/flags.md, both made from the flag table.
#pragma once

#include <string>
#include <string_view>

#include "cli/flag_table.h"

namespace hadal::cli {

// `hadal --help`: the commands.
std::string overview_help();

// `hadal tune --help`, where "tune moe" is a command and "tune" is not: its commands, each with an example.
std::string group_help(std::string_view first_word);

// `hadal <command> --help`: the flags that the command honours, by group.
std::string command_help(Command command);

// The text of docs/flags.md: every row of the table.
std::string flags_markdown();

}  // namespace hadal::cli
