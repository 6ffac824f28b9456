// Makes the grammar that forces a model to call tools, for tool_choice "required" and for a named function.
// The function is pure.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/chat_template.h"
#include "text/grammar.h"

namespace hadal {

// Returns a structural tag of one tool call (of one or more with `parallel`) in the notation of `format`,
// whose arguments match the function's "parameters" schema. `tools_json` is OpenAI's list of tools as JSON
// text; `function_name` names the function that must be called, and the model chooses if it is empty. The
// answer starts with the first marker: for a turn that begins with reasoning use
// GrammarMatcherOptions::start_after_token. The errors are kInvalidArgument with the tool's name (a list that
// is not OpenAI's, a function that is not in the list, a name that does not match [A-Za-z0-9_.-]{1,64}, or
// parameters that check_json_schema refuses) and kUnsupported (V2, which has no tool calls).
Result<GrammarSpec> tool_choice_grammar(ChatFormat format, std::string_view tools_json,
                                        std::string_view function_name, bool parallel);

}  // namespace hadal
