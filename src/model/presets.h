// Returns the config.json files of the published models by short name, so that dummy weights, benches and
// tests need no file. The values are those of the models' own files on the Hugging Face hub. The functions
// are pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hadal {

// Returns "v2-lite", "coder-v2-lite", "v2", "v2.5", "v3", "r1", "v3.1", "v3.2" and some published
// conversions.
std::vector<std::string> preset_names();

// Returns the text of the config.json of one of preset_names(). An unknown name is an error, which lists the
// known ones.
Result<std::string> preset_config_json(std::string_view name);

}  // namespace hadal
