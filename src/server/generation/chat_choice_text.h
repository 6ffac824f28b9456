// Separates the text of one choice of a chat into reasoning, content and calls, for every dialect. It belongs
// to one I/O thread.
//
// If reasoning is separated, the content never shows </think>: a tag that ends no reasoning is dropped from
// the content, but not from arguments of calls.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/openai_chat_request.h"
#include "text/chat/reasoning_parser.h"
#include "text/chat/tool_call_parser.h"

namespace hadal::server {

// The result does not depend on how the text was cut into pieces.
class ChatChoiceText {
 public:
  struct Piece {
    std::string reasoning;
    std::string content;
    std::vector<ToolCallDelta> calls;  // at most one delta for each call
  };
  explicit ChatChoiceText(const ChatParsing& parsing);
  // Adds new text. `last` is true at the end of the answer.
  Piece append(std::string text, bool last);
  int num_calls() const { return tools_ ? tools_->num_calls() : 0; }
  // Returns true if there are calls, and the arguments of each call that has ended are complete.
  bool has_whole_calls() const { return num_calls() > 0 && tools_->calls_are_whole(); }

 private:
  void take(ReasoningParser::Piece part, Piece& out);
  void add_content(std::string_view text, Piece& out);

  std::optional<ReasoningParser> reasoning_;  // none: everything is content
  std::optional<ToolCallParser> tools_;
  std::string held_;  // the beginning of </think> at the end of the content
};

}  // namespace hadal::server
