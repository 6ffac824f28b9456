#include "server/prompt_limits.h"

#include <algorithm>

namespace hadal::server {

namespace {

constexpr int64_t kRoomForAnswer = 128;  // beside a truncated prompt, if the client gave no length

}  // namespace

bool prompt_fits(const std::vector<int32_t>& prompt, const PromptLimits& limits) {
  const int64_t room = std::min(limits.context_length, limits.max_total_tokens);
  return !prompt.empty() && static_cast<int64_t>(prompt.size()) < room;
}

Result<int64_t> fit_prompt(std::vector<int32_t>& prompt, std::optional<int64_t> wanted,
                           std::optional<int64_t> fallback, const PromptLimits& limits) {
  if (prompt.empty()) return invalid_argument("the prompt is empty; must be one token or more");
  const int64_t room = std::min(limits.context_length, limits.max_total_tokens);
  const char* what = limits.context_length <= limits.max_total_tokens ? "the context length of the model"
                                                                      : "the tokens of the KV cache";
  auto length = static_cast<int64_t>(prompt.size());
  if (length >= room) {
    if (!limits.allow_auto_truncate) {
      return invalid_argument("the prompt has {} tokens; at most {} are allowed: {} is {}", length, room - 1,
                              what, room);
    }
    const int64_t answer = std::max<int64_t>(wanted.value_or(fallback.value_or(kRoomForAnswer)), 1);
    prompt.resize(static_cast<size_t>(std::max<int64_t>({room - answer, room / 2, 1})));
    length = static_cast<int64_t>(prompt.size());
  }
  const int64_t left = room - length;
  if (!wanted) return fallback ? std::min(*fallback, left) : left;
  if (*wanted <= left) return *wanted;
  if (limits.allow_auto_truncate) return left;
  return invalid_argument(
      "{} tokens are requested, {} of the prompt and {} of the answer; at most {} are allowed: {}",
      length + *wanted, length, *wanted, room, what);
}

}  // namespace hadal::server
