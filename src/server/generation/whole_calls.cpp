#include "server/generation/whole_calls.h"

#include <utility>

namespace hadal::server {

std::vector<ToolCallDelta> WholeCalls::append(std::vector<ToolCallDelta> pieces) {
  std::vector<ToolCallDelta> complete;
  for (ToolCallDelta& piece : pieces) {
    if (open_ && open_->index == piece.index) {
      open_->arguments += piece.arguments;
      continue;
    }
    if (open_) complete.push_back(std::move(*open_));
    open_ = std::move(piece);
  }
  return complete;
}

std::optional<ToolCallDelta> WholeCalls::finish() {
  return std::exchange(open_, std::nullopt);
}

}  // namespace hadal::server
