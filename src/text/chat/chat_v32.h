// Writes the prompt of V3.2, which has no chat template: its encoding is a program in the model's repository
// (encoding/encoding_dsv32.py), and this function writes the same text.
#pragma once

#include <span>

#include "base/result.h"
#include "text/chat/chat_template.h"
#include "text/chat/marked_text.h"

namespace hadal {

// Returns the text of `messages`, whose roles render_marked_chat has checked. The opening of the assistant's
// turn, <think> or </think>, follows each message of a user or developer, and the results of the last call of
// a turn. If `generate` is false, it does not follow the last message. The first message announces the tools
// if it is a system message; otherwise an empty system message before it does.
//
// With `thinking`, turns after the last question contain their reasoning, and developer messages before that
// question are left out. The errors (kInvalidArgument, naming the message) are a developer message without
// text; a tool message that no call precedes; more tool messages than there were calls; with `thinking`, an
// assistant message after the last question that has neither reasoning nor calls; and arguments that are not
// a JSON object.
//
// The text may end early once it has more than options.max_bytes; the messages after that are not checked.
Result<MarkedText> render_v32(std::span<const ChatMessage> messages, const ChatOptions& options,
                              bool generate, bool thinking);

}  // namespace hadal
