// Reads the conversation and the tools of a body of Anthropic's /v1/messages. The functions are pure.
#pragma once

#include "server/generation/dialect_chat.h"
#include "server/json/json_fields.h"
#include "server/openai/openai_messages.h"

namespace hadal::server {

// Reads `system` and `messages`. A role is user, assistant or system. Each result of a tool becomes a message
// of its own, and so do the texts of a user's turn between results. Images and documents are errors.
// Signatures are not checked, and redacted_thinking is left out, because this server cannot decrypt it.
void read_anthropic_messages(FieldReader& reader, ChatMessages& messages);

// Reads `tools` and `tool_choice`. Tools of a type other than "custom" are errors, because only Anthropic's
// servers define them. With "none" the tools are left out of the prompt, as in chat.
void read_anthropic_tools(FieldReader& reader, ToolFields& tools);

}  // namespace hadal::server
