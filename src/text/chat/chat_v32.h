// Writes the prompt of V3.2, which has no chat template: its encoding is a program in the model's repository
// (encoding/encoding_dsv32.py), and this function writes the same text.
#pragma once

#include <span>

#include "base/result.h"
#include "text/chat/chat_template.h"
#include "text/chat/marked_text.h"

namespace hadal {

// Returns the text of `messages`, whose roles render_marked_chat has checked. A message of a user or
// developer is followed by the opening of the assistant's turn, <think> or </think>, and so are the results
// of the last call of a turn. The text of the last question ends without that opening if `generate` is false.
// Tools are announced by the first message if it is the system's, and otherwise by an empty one before it.
//
// With `thinking`, reasoning stands in the turns after the last question, and developer messages before it
// are left out. The errors (kInvalidArgument, naming the message) are a developer message without text; a
// tool message that no call precedes, or more of them than there were calls; with `thinking`, an assistant
// message after the last question that has neither reasoning nor calls; and arguments that are not a JSON
// object.
//
// The text may end early once it has more than options.max_bytes; what follows is then not checked.
Result<MarkedText> render_v32(std::span<const ChatMessage> messages, const ChatOptions& options,
                              bool generate, bool thinking);

}  // namespace hadal
