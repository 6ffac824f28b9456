// Holds the names of flags and commands that users of other engines write out of habit, and what to use here.
// The table is immutable; any thread may read it.
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
  std::string_view flag;    // what it is called here, without "--"; empty: nothing corresponds to it
  std::string_view text;    // what to do where `flag` is empty, or where a command does not have it
};
std::span<const ForeignFlag> foreign_flags();

// Says what to use instead of another engine's flag in `command`, as in "is llama.cpp's name; use --seed".
// `spelled` is the flag as it was written, with its dashes. nullopt: no other engine has it.
std::optional<std::string> foreign_flag_advice(Command command, std::string_view spelled);

// Returns the command that another engine's command corresponds to: "serve" for "llama-server". Its words are
// separated by blanks. Empty: no other engine has it, or nothing corresponds to it.
std::string_view command_for_foreign(std::string_view name);

// Says why nothing here corresponds to another engine's command; empty: it is not known.
std::string_view why_needless(std::string_view name);

// Lists the commands that honour a flag of this name, in any of its rows.
std::string commands_with(std::string_view flag_name);

// Tells whether a command honours a flag of this name.
bool honours(Command command, std::string_view flag_name);

}  // namespace hadal::cli
