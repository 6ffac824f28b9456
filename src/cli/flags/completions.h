// Writes scripts by which shells complete commands, flags and values, all made from the flag table.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace hadal::cli {

// Returns the script of a shell: "bash", "zsh" or "fish". Another name is kInvalidArgument.
Result<std::string> completion_script(std::string_view shell);

}  // namespace hadal::cli
