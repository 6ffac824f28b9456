// Writes the flag table as JSON, for programs that make forms, wrappers or their own completions of it.
#pragma once

#include <string>

namespace hadal::cli {

// `hadal --flags --json` prints this: an object with a list of commands, and a list with a row of the table
// each, in its order. Every row has name, class ("honoured", "accepted", "alias" or "refused") and value
// ("none", "text", "texts", "integer", "number" or "list"), and "other_engines" lists the names of
// foreign_names.h.
std::string flags_json();

}  // namespace hadal::cli
