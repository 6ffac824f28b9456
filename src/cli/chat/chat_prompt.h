// Makes prompts of conversations, for the commands that run a model themselves. The functions are pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/flags/flag_parser.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace hadal::cli {

// Returns true if --content-special-tokens makes special tokens inside messages plain text.
bool content_is_text(const ParsedFlags& flags);

struct ChatPrompt {
  std::vector<int32_t> ids;
  std::string turns;  // the text in which tags count, so without the messages if tags in them are plain text
};

// Renders a conversation and encodes it. Errors are those of render_chat.
Result<ChatPrompt> make_chat_prompt(const Tokenizer& tokenizer, ChatFormat format,
                                    std::span<const ChatMessage> messages, const ChatOptions& options,
                                    bool content_as_text);

}  // namespace hadal::cli
