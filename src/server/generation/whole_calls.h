// Joins the pieces of tool calls, for answers in which a call is sent as a whole. It belongs to one thread at
// a time.
#pragma once

#include <optional>
#include <vector>

#include "text/chat/tool_call_parser.h"

namespace hadal::server {

class WholeCalls {
 public:
  // Adds the next pieces, and returns the calls that they complete: a call is complete when another one
  // begins.
  std::vector<ToolCallDelta> append(std::vector<ToolCallDelta> pieces);
  // Returns the call that the end of the answer, or text after the call, completes.
  std::optional<ToolCallDelta> finish();

 private:
  std::optional<ToolCallDelta> open_;
};

}  // namespace hadal::server
