// Reads a user's input in `hadal chat`: a message, or a command that begins with '/'. The functions are pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace hadal::cli {

enum class ChatAction {
  kSay,     // `text` is the message
  kSystem,  // `text` is the system prompt; without a text it is shown
  kReset,
  kRetry,
  kEdit,  // `text` replaces the last message; without a text the last message is edited in the terminal
  kSave,  // `text` is the file
  kLoad,  // `text` is the file
  kThink,
  kNoThink,
  kSet,  // `text` is "NAME VALUE", "NAME" or empty
  kHelp,
  kExit,
};

struct ChatInput {
  ChatAction action = ChatAction::kSay;
  std::optional<std::string> text;  // the text after the command's name, without blanks around it
};

// A line that begins with '/' is a command, unless it has further lines. The errors (kInvalidArgument) name
// the command and are an unknown command (with the nearest one as a suggestion), an argument that the command
// does not allow, and a missing file name.
Result<ChatInput> parse_chat_input(std::string_view input);

// Lists the commands, one per line.
std::string chat_help();

}  // namespace hadal::cli
