// Makes the grammars of tool calls: one forces a model to call tools, for tool_choice "required" and for a
// named function. The other makes the calls that a model chooses to make follow the schemas of strict
// functions. The functions are pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "text/chat/chat_template.h"
#include "text/grammar/grammar.h"

namespace hadal {

// Returns a structural tag for one tool call (for one or more with `parallel`) in the notation of `format`.
// The arguments match the function's "parameters" schema. `tools_json` is OpenAI's list of tools as JSON
// text; `function_name` names the function that must be called; if it is empty, the model chooses. The answer
// starts with the first marker, so for a turn that begins with reasoning use
// GrammarMatcherOptions::start_after_token. The errors are kInvalidArgument with the tool's name (a list that
// is not OpenAI's, a function that is not in the list, a name that does not match [A-Za-z0-9_.-]{1,64}, or
// parameters that check_json_schema refuses) and kUnsupported (V2, which has no tool calls).
Result<GrammarSpec> tool_choice_grammar(ChatFormat format, std::string_view tools_json,
                                        std::string_view function_name, bool parallel);

// Returns a structural tag for free text that may end with a block of tool calls. The calls name only
// functions of the list. The arguments of the functions in `strict` match their "parameters" schema, and
// those of other functions are any JSON object. The errors are those of tool_choice_grammar, but the schemas
// of other functions are not checked.
Result<GrammarSpec> strict_calls_grammar(ChatFormat format, std::string_view tools_json,
                                         std::span<const std::string> strict, bool parallel);

}  // namespace hadal
