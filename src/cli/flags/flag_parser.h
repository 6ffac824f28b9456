// Turns command line words and the entries of a --config file into checked values, as argparse reads them:
// '-' or '_' inside names, --flag value or --flag=value, unique prefixes; the model may come first without
// its flag. flag_table.h defines the flags and their allowed values. The functions are pure: nothing is run,
// printed or logged.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/flags/config_file.h"
#include "cli/flags/flag_table.h"

namespace hadal::cli {

// FlagUse is one flag as it was given, after prefixes and aliases in its name are resolved.
struct FlagUse {
  const Flag* flag = nullptr;  // never an alias row
  std::string spelled;         // as the user wrote it: "--tp", or "FILE:LINE: tp" in a file
  std::vector<std::string> values;
};

// Resolves names and counts values, without checking classes or the values themselves. Command kNone has the
// flags of all commands. One error lists all faults: names that resolve_name refuses, missing values, and
// words that belong to no flag. A first word that is no flag is the value of --model-path where the command
// has that flag for a model that it loads.
Result<std::vector<FlagUse>> resolve_flags(Command command, std::span<const std::string> words);

// ParsedFlags holds the values of a command's flags, all of which the table allows.
class ParsedFlags {
 public:
  bool has(std::string_view name) const { return values_.find(name) != values_.end(); }
  std::optional<std::string> text(std::string_view name) const;
  std::string text_or(std::string_view name, std::string_view otherwise) const;
  std::optional<int64_t> integer(std::string_view name) const;
  std::optional<double> number(std::string_view name) const;
  // Returns every value of a flag that is repeated or a list, in order; values are not split at commas.
  std::vector<std::string> texts(std::string_view name) const;
  Command command() const { return command_; }
  // Takes the values of all flags that `other` has.
  void override_with(const ParsedFlags& other);

  bool help = false;
  std::vector<std::string> notes;  // a log line for each flag of the class kAlready

 private:
  friend Result<ParsedFlags> parse_flags(Command command, std::span<const std::string> words,
                                         std::span<const ConfigEntry> file);
  std::map<std::string, std::vector<std::string>, std::less<>> values_;
  Command command_ = Command::kNone;
};

// Resolves and checks the flags. A flag in `words` overrides the same flag in `file`, whose switches have the
// value true or false. A flag that is given more than once is an error, unless all of its values count; but
// in the commands that SGLang has too (serve and bench) the last use counts, as in argparse. One error
// (kInvalidArgument) lists all faults, each with the flag (in a file: the line and key), its value and what
// is allowed.
Result<ParsedFlags> parse_flags(Command command, std::span<const std::string> words,
                                std::span<const ConfigEntry> file = {});

// Returns the value of --config, which names the file whose entries parse_flags needs. Returns nullopt
// without the flag, or if the words ask for help.
std::optional<std::string> config_path(Command command, std::span<const std::string> words);

// Reads token ids that are written as 1,2,3, as 1 2 3 or as a JSON list. `source` names the text in errors.
Result<std::vector<int32_t>> parse_ids(std::string_view text, std::string_view source);

// Reads the integers of a list flag ("1,4" or "1 4"), each of which must be in the range of the flag.
Result<std::vector<int64_t>> parse_counts(const ParsedFlags& flags, std::string_view name,
                                          std::vector<int64_t> otherwise);

}  // namespace hadal::cli
