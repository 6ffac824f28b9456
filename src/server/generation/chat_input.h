// ChatInput is a chat request of any dialect which has been read but not yet encoded. A dialect reads its own
// fields into it, and make_chat() turns it into generations. The functions are pure.
#pragma once

#include <string_view>
#include <vector>

#include "server/openai/openai_chat_request.h"
#include "server/openai/openai_messages.h"
#include "server/openai/openai_request.h"
#include "text/chat/chat_template.h"

namespace hadal::server {

struct ChatInput {
  std::vector<ChatMessage> messages;
  // make_chat() sets all fields but thinking, continue_final_message and add_generation_prompt.
  ChatOptions options;
  ToolFields tools;
  OpenAiFields fields;  // an empty sampling.max_new_tokens means the rest of the context
  LogprobOptions logprobs;
  bool separate_reasoning = true;  // false: <think> stays in the content
  bool content_as_text = false;    // special tokens in messages and tools are text
  // Errors in this dialect call the greatest length of the answer by this name. Messages are called
  // "messages", and tools "tools" and "tool_choice"; a dialect with other names replaces them in the reader's
  // errors.
  std::string_view length_field = "max_tokens";
  std::string_view id_prefix = "chatcmpl-";  // begins the answer's id
};

// Reads content_special_tokens: "special" or "text" says whether special tokens in messages and tools are
// recognised or are plain text. The default is the server's.
void read_content_special_tokens(FieldReader& reader, const OpenAiLimits& limits, ChatInput& input);

// Renders and encodes the conversation, fits it to the limits, and adds the choices to out.common. It sets
// out.parsing except stream_reasoning, out.logprobs and out.opened_thinking. Errors stay in `reader`; if it
// has one already, nothing is done. out.common has model, stream, usage options and memory already.
void make_chat(FieldReader& reader, const OpenAiLimits& limits, ChatInput input, OpenAiChatRequest& out);

}  // namespace hadal::server
