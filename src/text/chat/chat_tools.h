// Writes the text with which a chat format announces tools to the model. Names, descriptions and parameters
// are marked as the client's.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/chat/marked_text.h"

namespace hadal {

// Renders `tools_json`, OpenAI's list of tools, as V3.1's announcement: a heading, then name, description and
// parameters of each function, then the rules of a call. The template in V3.1's tokenizer_config.json ignores
// tools. The text is therefore "tool_description" from DeepSeek-V3.1's model card, section ToolCall, as it
// reads since its commit "Fix tool call description" (one line break after "Where:", single braces around
// additional_tool_calls). docs/server.md says how the templates of other engines differ.
//
// The text of all three functions may end early, once it has more than `max_bytes`, because indentation can
// make it a hundred times longer than the JSON.
Result<MarkedText> announce_tools_v31(std::string_view tools_json, size_t max_bytes);

// Renders the announcement of V2.5's model card: each function as an indented JSON object in a code fence.
Result<MarkedText> announce_tools_v25(std::string_view tools_json, size_t max_bytes);

// Renders the announcement of V3.2's encoder: the rules of a call, then each function as JSON on a line of
// its own, with all members that the client gave it.
Result<MarkedText> announce_tools_v32(std::string_view tools_json, size_t max_bytes);

}  // namespace hadal
