// Reads the conversation and the tools of a body of OpenAI's /v1/responses. The functions are pure.
#pragma once

#include "server/generation/dialect_chat.h"
#include "server/json/json_fields.h"
#include "server/openai/openai_messages.h"

namespace hadal::server {

// Reads `input`, a string or a list of items: messages, function_call, function_call_output and reasoning.
// Items of one turn of the assistant (reasoning, its text, its calls) become one message. Images, files,
// references and the items of built-in tools are errors.
void read_responses_input(FieldReader& reader, ChatMessages& messages);

// Reads `tools`, `tool_choice`, `parallel_tool_calls`. Tools of a type other than "function" are errors,
// because only OpenAI's servers execute them.
void read_responses_tools(FieldReader& reader, ToolFields& tools);

}  // namespace hadal::server
