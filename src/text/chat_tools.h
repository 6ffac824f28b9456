// The text by which a chat format announces tools to the model.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace hadal {

// From `tools_json`, OpenAI's list of tools: V3.1's announcement, as published in that model's card: a
// heading, then name, description and parameters of each function, then the rules of a call.
Result<std::string> announce_tools_v31(std::string_view tools_json);

// The announcement of V2.5's model card: each function as an indented JSON object in a code fence.
Result<std::string> announce_tools_v25(std::string_view tools_json);

}  // namespace hadal
