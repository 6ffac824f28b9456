// A ChatInput is a chat request of any dialect, read but not yet encoded. A dialect reads its own fields into
// one, and make_chat() turns it into generations. The functions are pure.
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
  OpenAiFields fields;  // sampling.max_new_tokens: none for what is left of the context
  LogprobOptions logprobs;
  bool separate_reasoning = true;  // false: <think> stays in the content
  bool content_as_text = false;    // special tokens in messages and tools are text
  // What errors call the longest answer in this dialect. Messages are "messages", tools "tools" and
  // "tool_choice"; a dialect with other names replaces them in what the reader reports.
  std::string_view length_field = "max_tokens";
  std::string_view id_prefix = "chatcmpl-";  // begins the answer's id
};

// Reads content_special_tokens, whose default is the server's: whether special tokens in messages and tools
// are found or are text.
void read_content_special_tokens(FieldReader& reader, const OpenAiLimits& limits, ChatInput& input);

// Renders and encodes the conversation, fits it to the limits, and adds the choices to out.common. Sets
// out.parsing but for stream_reasoning, out.logprobs and out.opened_thinking. Errors stay in `reader`;
// nothing is done if it has one. out.common has model, stream, usage options and memory already.
void make_chat(FieldReader& reader, const OpenAiLimits& limits, ChatInput input, OpenAiChatRequest& out);

}  // namespace hadal::server
