// Writes the texts of --help and of docs/flags.md, both made from the flag table. The functions are pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/flags/flag_table.h"

namespace hadal::cli {

// `hadal --help` lists the commands.
std::string overview_help();

// `hadal tune --help` lists the commands that begin with "tune", each with an example.
std::string group_help(std::string_view first_word);

// `hadal <command> --help` lists the flags of the command, by group.
std::string command_help(Command command);

// Returns the headings of flags in the order in which they are shown.
std::vector<std::string_view> flag_groups();

// Returns a flag as help shows it: "--top-p X", "--dtype auto|float32", "--json".
std::string signature(const Flag& flag);

// Returns the description of a flag, with its default in brackets.
std::string help_text(const Flag& flag);

// Returns the text of docs/flags.md, which has every row of the table.
std::string flags_markdown();

}  // namespace hadal::cli
