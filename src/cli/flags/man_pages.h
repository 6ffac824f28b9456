// Writes manual pages in the language of man(7), made from the flag table.
#pragma once

#include <string>

#include "cli/flags/flag_table.h"

namespace hadal::cli {

// Returns hadal(1), which lists the commands.
std::string man_page();

// Returns the page of a command, such as hadal-bench-serving(1), with all of its flags.
std::string man_page(Command command);

// Returns the name of a command's page, without the section: "hadal-bench-serving".
std::string man_name(Command command);

}  // namespace hadal::cli
