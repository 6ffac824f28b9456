// Holds the names of other engines' flags and commands, which users write out of habit, and what to use here
// instead. The table is immutable; any thread may read it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cli/flags/flag_table.h"

namespace hadal::cli {

struct ForeignFlag {
  std::string_view engine;  // "llama.cpp", "vLLM", "Ollama"
  std::string_view names;   // "-c --ctx-size", separated by blanks
  std::string_view flag;    // its name here, without "--"; empty: nothing corresponds to it
  std::string_view text;    // what to do if `flag` is empty, or if a command does not have it
};
std::span<const ForeignFlag> foreign_flags();

// Returns what to use instead of another engine's flag in `command`, as in "is llama.cpp's name; use --seed".
// `spelled` is the flag as it was written, with its dashes. Returns nullopt if no other engine has the flag.
std::optional<std::string> foreign_flag_advice(Command command, std::string_view spelled);

// Returns the command that another engine's command corresponds to: "serve" for "llama-server". Its words are
// separated by blanks. Returns an empty text if no other engine has the command, or if nothing corresponds to
// it.
std::string_view command_for_foreign(std::string_view name);

// Returns why nothing here corresponds to another engine's command; empty if the command is not known.
std::string_view why_needless(std::string_view name);

// Lists the commands that honour a flag of this name, in any of its rows.
std::string commands_with(std::string_view flag_name);

// Tells whether a command honours a flag of this name.
bool honours(Command command, std::string_view flag_name);

}  // namespace hadal::cli
