// Reads the files of --config: YAML whose keys are names of flags. Any thread may call the functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hadal::cli {

// ConfigEntry is one key of the file with its values, as they would stand on a command line.
struct ConfigEntry {
  std::string key;                  // "tp-size", as it is written
  std::vector<std::string> values;  // one, or those of a list
  std::string place;                // "FILE:LINE", for errors
  std::string fault;                // what is wrong with it; empty: nothing
};

// Parses the text of a file. `source` names it in errors. Keys are names of flags, with - or _; a value is a
// text, a number, true or false, or a list of these. A key that appears twice, a key without a value and a
// mapping as a value are stored as faults of their entries, so that all faults can be reported together. The
// errors (kInvalidArgument, with file and line) are text that is not YAML and a document that is not a
// mapping. An empty file has no entries.
Result<std::vector<ConfigEntry>> parse_config(const std::string& text, std::string_view source);

// Reads and parses a file, which may have at most 1 MiB. The errors are those of read_text_file and of
// parse_config.
Result<std::vector<ConfigEntry>> read_config_file(const std::string& path);

}  // namespace hadal::cli
