#include "server/admission/prompt_limits.h"

#include <algorithm>

#include "server/admission/memory_costs.h"
#include "server/json/sampling_fields.h"
#include "text/tokenizer/splitter.h"

namespace hadal::server {

namespace {

constexpr int64_t kRoomForAnswer = 128;  // beside a truncated prompt, if the client gave no length

const char* what_limits(const PromptLimits& limits) {
  return limits.context_length <= limits.max_total_tokens ? "the context length of the model"
                                                          : "the tokens of the KV cache";
}

int64_t room_of(const PromptLimits& limits) {
  return std::max<int64_t>(std::min(limits.context_length, limits.max_total_tokens), 1);
}

// If `least` is set, `length` is a lower bound.
Status too_long(int64_t length, bool least, const PromptLimits& limits) {
  const int64_t room = room_of(limits);
  return make_status(StatusCode::kInvalidArgument,
                     "the prompt has {}{} tokens; at most {} are allowed: {} is {}", least ? "at least " : "",
                     length, room - 1, what_limits(limits), room);
}

Result<std::vector<int32_t>> encode(const Tokenizer& tokenizer, std::string_view text,
                                    bool add_special_tokens, const PromptLimits& limits,
                                    std::span<const TextRange> literal) {
  const auto room = static_cast<size_t>(room_of(limits));
  const size_t max_bytes = max_prompt_bytes(tokenizer, limits);
  if (!limits.allow_auto_truncate && text.size() > max_bytes) {
    const size_t longest = tokenizer.longest_token_bytes();
    return too_long(static_cast<int64_t>((text.size() + longest - 1) / longest), true, limits);
  }
  MemoryCharge work(limits.memory);
  HADAL_RETURN_IF_ERROR(
      work.add(MemoryKind::kPrompt, std::min(text.size(), max_bytes) * kEncodeBytesPerByte));
  if (limits.allow_auto_truncate) return tokenizer.encode(text, add_special_tokens, room, literal);
  // The limit is twice the room, because a client whose prompt is only somewhat too long should learn by how
  // much.
  auto ids = tokenizer.encode(text, add_special_tokens, 2 * room, literal);
  if (ids.size() > 2 * room) return too_long(static_cast<int64_t>(ids.size()), true, limits);
  return ids;
}

}  // namespace

Result<std::vector<int32_t>> encode_prompt(const Tokenizer& tokenizer, std::string_view text,
                                           bool add_special_tokens, const PromptLimits& limits,
                                           std::span<const TextRange> literal) {
  try {
    return encode(tokenizer, text, add_special_tokens, limits, literal);
  } catch (const PatternLimitError& error) {
    return invalid_argument("{}", error.what());
  }
}

size_t max_prompt_bytes(const Tokenizer& tokenizer, const PromptLimits& limits) {
  const size_t longest = tokenizer.longest_token_bytes();
  const auto room = static_cast<size_t>(room_of(limits));
  return longest == 0 || room > SIZE_MAX / longest ? SIZE_MAX : room * longest;
}

bool prompt_fits(const std::vector<int32_t>& prompt, const PromptLimits& limits) {
  const int64_t room = std::min(limits.context_length, limits.max_total_tokens);
  return !prompt.empty() && static_cast<int64_t>(prompt.size()) < room;
}

void read_answer_length(FieldReader& reader, std::string_view name, std::optional<int64_t>& out, int64_t min,
                        const PromptLimits& limits) {
  // With allow_auto_truncate any length is lowered to what fits.
  if (limits.allow_auto_truncate) return reader.integer(name, out, min, kMaxTokenCount);
  if (!reader.ok()) return;
  FieldReader probe(reader.object(), reader.prefix());
  probe.integer(name, out, min, kMaxTokenCount);
  if (probe.ok()) return;
  const int64_t room = room_of(limits);
  reader.must_be(name, *reader.find(name),
                 fmt::format("an integer in [{}, {}]: {} is {}, and the prompt has a token or more", min,
                             std::max(room - 1, min), what_limits(limits), room));
}

Result<int64_t> fit_prompt(std::vector<int32_t>& prompt, std::optional<int64_t> wanted,
                           std::optional<int64_t> fallback, const PromptLimits& limits) {
  if (prompt.empty()) return invalid_argument("the prompt is empty; must be one token or more");
  const int64_t room = std::min(limits.context_length, limits.max_total_tokens);
  auto length = static_cast<int64_t>(prompt.size());
  if (length >= room) {
    if (!limits.allow_auto_truncate) {
      return too_long(length, false, limits);
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
      length + *wanted, length, *wanted, room, what_limits(limits));
}

}  // namespace hadal::server
