// Chat encodings of the DeepSeek family turn messages into the prompt text on which the model was trained.
// Published templates are Jinja programs; here each format is a function, and a checkpoint's format is
// recognised by markers in its template's text (kFormatMarkers in chat_template.cpp, the one table that
// decides), or by its architecture if it has no template. The functions are pure: any thread may call them.
#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/chat/marked_text.h"

namespace hadal {

enum class ChatFormat {
  kV2,   // V2, V2-Lite, Coder-V2: "User: …\n\nAssistant: …"
  kV25,  // V2.5, V3, V3-0324, R1-0528 (which opens <think> itself): <｜User｜>…<｜Assistant｜>…
  kR1,   // R1: like V2.5, but generation starts with <think>\n
  kV31,  // V3.1: <｜Assistant｜><think> or <｜Assistant｜></think>, tool calls without code fences
  kV32,  // V3.2: like V3.1 for plain turns; tool calls as DSML tags (text/chat/chat_v32.h)
};

// `name` is "v2", "v2.5", "r1", "v3.1" or "v3.2"; anything else is kInvalidArgument and lists these.
Result<ChatFormat> parse_chat_format(std::string_view name);
const char* to_string(ChatFormat format);

// Returns the format of a checkpoint's `chat_template` (tokenizer_config.json). Without one the format is
// that of `architecture`, the name in config.json, if its models ship without a template
// ("DeepseekV32ForCausalLM": v3.2). Otherwise an empty or unknown template is an error that tells how to
// choose a format by hand.
Result<ChatFormat> detect_chat_format(std::string_view chat_template, std::string_view architecture = {});

struct ToolCall {
  std::string id;                 // the client's, not rendered by any of the formats
  std::string type = "function";  // rendered by V2.5 and R1
  std::string name;
  std::string arguments;  // a JSON object as text; V3.2 renders its members, the others the text as it is
};

struct ChatMessage {
  std::string role;  // "system" | "developer" | "user" | "assistant" | "tool"
  std::string content;
  std::string reasoning_content;     // assistant: the text inside <think>; see render_chat
  std::vector<ToolCall> tool_calls;  // assistant
  std::string tool_call_id;          // tool: the client's, not rendered by any of the formats
};

struct ChatOptions {
  bool thinking = false;              // V3.1, V3.2: open <think> for the model; R1 always does, others never
  std::string tools_json;             // OpenAI's `tools` list as JSON text; empty: none
  bool add_generation_prompt = true;  // end with the beginning of the assistant's turn
  bool continue_final_message = false;  // the last message is an unfinished assistant turn, left open
  // The caller cannot use more bytes than this: beyond the limit, the announcement of tools, and all of
  // V3.2's text, may end early.
  size_t max_bytes = std::numeric_limits<size_t>::max();
};

// Returns the prompt text of a conversation, including bos: encode it with add_special_tokens = false. A
// developer message is a system message, except in V3.2. Reasoning of earlier turns is dropped:
// reasoning_content, and the part of content before </think>. V3.2 drops only reasoning_content: before the
// last question, and without `thinking` everywhere; it leaves contents as they are. text/chat/chat_v32.h
// describes this format and its errors. With continue_final_message, add_generation_prompt is ignored, and
// the prompt ends with the text of the last message. This text begins with the opening that the format gives
// a generated turn. Then come reasoning_content (which makes V3.1 and V3.2 open <think>), </think> if there
// is content as well, and content. The errors (kInvalidArgument, naming the message) are an unknown role,
// tool calls outside an assistant message, tools that are not a list of {"type": "function", "function":
// {"name", …}}, and continue_final_message if the last message is not the assistant's. The error is
// kUnsupported for tools, tool calls and results with V2, which has no format for them.
Result<std::string> render_chat(ChatFormat format, std::span<const ChatMessage> messages,
                                const ChatOptions& options = {});

// Returns the same text with marks on everything that a client wrote: contents, reasoning, names and
// arguments of tool calls, and names, descriptions and parameters of tools. Text that the format adds is not
// marked.
Result<MarkedText> render_marked_chat(ChatFormat format, std::span<const ChatMessage> messages,
                                      const ChatOptions& options = {});

// Tells whether generation starts inside <think>, so that the output's parser must begin in
// reasoning.
bool generation_starts_in_reasoning(ChatFormat format, const ChatOptions& options);

}  // namespace hadal
