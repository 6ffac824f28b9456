// Reads the messages of Ollama's /api/chat. The functions are pure.
#pragma once

#include <string_view>
#include <vector>

#include "server/json/json_fields.h"
#include "text/chat/chat_template.h"

namespace hadal::server {

// Reads `messages`, which may be absent or empty. A message has a role (system, user, assistant or tool),
// content, thinking and tool_calls, whose arguments are objects.
void read_ollama_messages(FieldReader& reader, std::vector<ChatMessage>& messages);

// Refuses (kUnsupported) a list of images unless it is empty.
void refuse_ollama_images(FieldReader& reader, std::string_view name);

}  // namespace hadal::server
