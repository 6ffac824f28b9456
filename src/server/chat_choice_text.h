// Separates the text of one choice of a chat into reasoning, content and calls, for every dialect. It belongs
// to one I/O thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/openai_chat_request.h"
#include "text/reasoning_parser.h"
#include "text/tool_call_parser.h"

namespace hadal::server {

// The result does not depend on how the text was cut into pieces.
class ChatChoiceText {
 public:
  struct Piece {
    std::string reasoning;
    std::string content;
    std::vector<ToolCallDelta> calls;
  };
  explicit ChatChoiceText(const ChatParsing& parsing);
  // Adds new text; `last` tells that it is the end.
  Piece append(std::string text, bool last);
  int num_calls() const { return tools_ ? tools_->num_calls() : 0; }

 private:
  void take(ReasoningParser::Piece part, Piece& out);

  std::optional<ReasoningParser> reasoning_;  // none: everything is content
  std::optional<ToolCallParser> tools_;
};

}  // namespace hadal::server
