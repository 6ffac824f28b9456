// Reads what a user types in `hadal chat`: a message, or a command that begins with '/'. The functions are
// pure.
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
  std::optional<std::string> text;  // what follows the command's name, without blanks around it
};

// A line that begins with '/' is a command, unless it has further lines. The errors (kInvalidArgument) name
// the command: it is unknown (they suggest the nearest), allows no argument but has one, or lacks the name of
// a file.
Result<ChatInput> parse_chat_input(std::string_view input);

// Lists the commands, one per line.
std::string chat_help();

}  // namespace hadal::cli
