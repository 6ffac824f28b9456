// Reads the messages and tools of a chat body. The functions are pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/json/json_fields.h"
#include "text/chat/chat_template.h"

namespace hadal::server {

inline constexpr size_t kMaxTools = 1024;  // of one request

// Clients get this reason when parts that are not text are refused, with status 501.
inline constexpr std::string_view kTextOnly =
    "text generation only: the models read no images, no sound and no files";

// Reads `messages`. A role is system, developer, user, assistant or tool. Content is a string or a list of
// parts, whose texts are joined by a space as SGLang does for templates of one string. Parts of other types
// (images, sound, files) are kUnsupported.
void read_messages(FieldReader& reader, std::vector<ChatMessage>& messages);

// ToolCallForm says how a dialect writes the calls of a message.
struct ToolCallForm {
  std::string_view shape;  // of a call, for errors
  bool has_type = false;   // its `type` must be "function"
  bool has_text = false;   // `arguments` may be a string of JSON; otherwise they must be an object
};

// Reads the `tool_calls` of a message, whose role has been read. Calls without arguments have "{}".
void read_tool_calls(FieldReader& message, const ToolCallForm& form, ChatMessage& out);

struct ToolFields {
  enum class Choice { kNone, kAuto, kRequired, kNamed };
  Choice choice = Choice::kNone;    // kNone also without tools
  std::string function;             // kNamed
  std::vector<std::string> names;   // names of the tools
  std::vector<std::string> strict;  // names of those whose calls must fit their parameters ("strict": true)
  std::string tools_json;           // as the client wrote them; empty with kNone
  bool parallel = true;
};

// Reads `tools`, `tool_choice`, `parallel_tool_calls`. With "none" the model is not told about the tools, as
// in SGLang.
void read_tools(FieldReader& reader, ToolFields& tools);

}  // namespace hadal::server
