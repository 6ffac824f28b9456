// Writes the flag table as JSON, from which programs can make forms, wrappers or their own completions.
#pragma once

#include <string>

namespace hadal::cli {

// Returns the output of `hadal --flags --json`: an object with a list of commands, and with a list of the
// table's rows in the table's order. Every row has name, class ("honoured", "accepted", "alias" or "refused")
// and value ("none", "text", "texts", "integer", "number" or "list"), and "other_engines" lists the names of
// foreign_names.h.
std::string flags_json();

}  // namespace hadal::cli
