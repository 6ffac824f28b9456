#include "cli/chat/chat_prompt.h"

#include <limits>
#include <utility>

namespace hadal::cli {

bool content_is_text(const ParsedFlags& flags) {
  return flags.text_or("content-special-tokens", "special") == "text";
}

Result<ChatPrompt> make_chat_prompt(const Tokenizer& tokenizer, ChatFormat format,
                                    std::span<const ChatMessage> messages, const ChatOptions& options,
                                    bool content_as_text) {
  HADAL_ASSIGN_OR_RETURN(MarkedText marked, render_marked_chat(format, messages, options));
  ChatPrompt prompt;
  prompt.ids = tokenizer.encode(
      marked.text, false, std::numeric_limits<size_t>::max(),
      content_as_text ? std::span<const TextRange>(marked.content) : std::span<const TextRange>());
  prompt.turns = content_as_text ? marked.without_content() : std::move(marked.text);
  return prompt;
}

}  // namespace hadal::cli
