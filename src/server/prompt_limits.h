// Checks whether a prompt and its answer fit. This is decided before the engine is called, so that a request
// that can never fit is a client's error (400) and not a temporary one (503). The functions are pure.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/request_memory.h"
#include "text/tokenizer.h"

namespace hadal::server {

struct PromptLimits {
  int64_t context_length = 0;    // limit of prompt plus answer
  int64_t max_total_tokens = 0;  // capacity of the KV cache
  bool allow_auto_truncate = false;
  std::shared_ptr<RequestMemory> memory;  // what a request holds is counted there; null: nowhere
};

// Returns true if the prompt, which must not be empty, leaves room for one token.
bool prompt_fits(const std::vector<int32_t>& prompt, const PromptLimits& limits);

// Tokenises a prompt of text in a time that the limits bound, whatever the text. A text that is too long by
// its number of bytes is kInvalidArgument at once, with the wording of fit_prompt, and one whose tokens are
// more than twice what is allowed when that many have been counted ("at least N tokens"); fit_prompt refuses
// the others. With allow_auto_truncate a beginning of the text is encoded that is more than fits, and
// fit_prompt cuts it. A text on which a pattern of the checkpoint takes too long is kInvalidArgument as well
// (PatternLimitError), and kResourceExhausted is returned when limits.memory has no room for the work.
// Tokenizer::encode explains `literal`.
Result<std::vector<int32_t>> encode_prompt(const Tokenizer& tokenizer, std::string_view text,
                                           bool add_special_tokens, const PromptLimits& limits,
                                           std::span<const TextRange> literal = {});

// Returns the most bytes of text that a prompt may have (SIZE_MAX: the vocabulary sets no limit). Text beyond
// them need not be made, because encode_prompt refuses or cuts it.
size_t max_prompt_bytes(const Tokenizer& tokenizer, const PromptLimits& limits);

// Returns the answer's length: `wanted`, or, if the client gave none, `fallback` lowered to what fits
// (nullopt: everything that fits). With allow_auto_truncate a prompt that does not fit loses its end, as much
// as the answer needs but at most down to half of the room, and a `wanted` that still does not fit is
// lowered; otherwise both are kInvalidArgument, which names counts and limit. A prompt needs at least one
// token of room.
Result<int64_t> fit_prompt(std::vector<int32_t>& prompt, std::optional<int64_t> wanted,
                           std::optional<int64_t> fallback, const PromptLimits& limits);

}  // namespace hadal::server
