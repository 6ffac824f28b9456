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
#include "server/admission/request_memory.h"
#include "server/json/json_fields.h"
#include "text/tokenizer/tokenizer.h"

namespace hadal::server {

struct PromptLimits {
  int64_t context_length = 0;    // limit of prompt plus answer
  int64_t max_total_tokens = 0;  // capacity of the KV cache
  bool allow_auto_truncate = false;
  std::shared_ptr<RequestMemory> memory;  // what a request holds is counted there; null: nowhere
};

// Returns true if the prompt, which must not be empty, leaves room for one token.
bool prompt_fits(const std::vector<int32_t>& prompt, const PromptLimits& limits);

// Tokenises a prompt of text in a time that the limits bound, whatever the text. The errors are
// kInvalidArgument, with the wording of fit_prompt, if the number of bytes alone says that the text is too
// long, or as soon as more than twice the allowed tokens have been counted ("at least N tokens");
// kInvalidArgument also if a pattern of the checkpoint takes too long on the text (PatternLimitError); and
// kResourceExhausted when limits.memory has no room for the work. Up to twice the allowed tokens are encoded,
// and fit_prompt refuses them. With allow_auto_truncate no text is too long: enough of its beginning is
// encoded, which fit_prompt cuts. Tokenizer::encode explains `literal`.
Result<std::vector<int32_t>> encode_prompt(const Tokenizer& tokenizer, std::string_view text,
                                           bool add_special_tokens, const PromptLimits& limits,
                                           std::span<const TextRange> literal = {});

// Returns the most bytes of text that a prompt may have (SIZE_MAX: the vocabulary sets no limit). Text beyond
// them need not be made, because encode_prompt refuses or cuts it.
size_t max_prompt_bytes(const Tokenizer& tokenizer, const PromptLimits& limits);

// Reads the field `name`, an answer's length of `min` or more. The error states the range that the limits
// leave beside a prompt of one token; whether the answer fits beside its own prompt, fit_prompt says.
void read_answer_length(FieldReader& reader, std::string_view name, std::optional<int64_t>& out, int64_t min,
                        const PromptLimits& limits);

// Returns the answer's length: `wanted`, or, if the client gave none, `fallback` lowered to what fits
// (nullopt: everything that fits). With allow_auto_truncate a prompt that does not fit loses its end, as much
// as the answer needs but at most down to half of the room, and a `wanted` that still does not fit is
// lowered; otherwise both are kInvalidArgument, which names counts and limit. A prompt needs at least one
// token of room.
Result<int64_t> fit_prompt(std::vector<int32_t>& prompt, std::optional<int64_t> wanted,
                           std::optional<int64_t> fallback, const PromptLimits& limits);

}  // namespace hadal::server
