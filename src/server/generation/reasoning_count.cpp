#include "server/generation/reasoning_count.h"

#include "text/chat/chat_markers.h"

namespace hadal::server {

ReasoningCount::ReasoningCount(const Tokenizer& tokenizer, bool opened)
    : think_id_(tokenizer.token_to_id(kThink)),
      end_think_id_(tokenizer.token_to_id(kEndThink)),
      in_reasoning_(opened) {}

void ReasoningCount::add(const GenerationDelta& delta) {
  const auto before = delta.completion_tokens - static_cast<int64_t>(delta.token_ids.size());
  // A model that opens <think> itself begins with that token.
  if (before == 0 && !delta.token_ids.empty() && think_id_ == delta.token_ids.front()) in_reasoning_ = true;
  if (!in_reasoning_) return;
  for (const int32_t id : delta.token_ids) {
    ++tokens_;
    if (end_think_id_ != id) continue;
    in_reasoning_ = false;
    return;
  }
}

}  // namespace hadal::server
