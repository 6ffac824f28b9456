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
  std::shared_ptr<RequestMemory> memory;  // counts what a request holds; null: nothing is counted
};

// Returns true if the prompt, which must not be empty, leaves room for one token.
bool prompt_fits(const std::vector<int32_t>& prompt, const PromptLimits& limits);

// Tokenises a prompt of text in a time that the limits bound, whatever the text. A text that is too long is
// kInvalidArgument, with the wording of fit_prompt. It is found by its number of bytes alone, or once more
// than twice the allowed tokens have been counted ("at least N tokens"). A too long text of at most twice the
// allowed tokens is encoded, and fit_prompt refuses it. With allow_auto_truncate no text is too long: enough
// of its beginning is encoded, which fit_prompt cuts. The other errors are kInvalidArgument if a pattern of
// the checkpoint takes too long on the text (PatternLimitError), and kResourceExhausted if limits.memory has
// no room for the work. Tokenizer::encode explains `literal`.
Result<std::vector<int32_t>> encode_prompt(const Tokenizer& tokenizer, std::string_view text,
                                           bool add_special_tokens, const PromptLimits& limits,
                                           std::span<const TextRange> literal = {});

// Returns the most bytes of text that a prompt may have (SIZE_MAX: the vocabulary sets no limit). Callers
// need not build text beyond them, because encode_prompt refuses or cuts it.
size_t max_prompt_bytes(const Tokenizer& tokenizer, const PromptLimits& limits);

// Reads the field `name`, an answer's length of `min` or more. The error states the range that the limits
// leave beside a prompt of one token. fit_prompt checks whether the answer fits beside its own prompt.
void read_answer_length(FieldReader& reader, std::string_view name, std::optional<int64_t>& out, int64_t min,
                        const PromptLimits& limits);

// Returns the answer's length: `wanted`, or, if the client gave none, `fallback` lowered to what fits
// (nullopt: everything that fits). A prompt needs at least one token of room. A prompt or a `wanted` that
// does not fit is kInvalidArgument, which names counts and limit. With allow_auto_truncate the prompt instead
// loses its end, as much as the answer needs but at most down to half of the room, and a `wanted` that still
// does not fit is lowered.
Result<int64_t> fit_prompt(std::vector<int32_t>& prompt, std::optional<int64_t> wanted,
                           std::optional<int64_t> fallback, const PromptLimits& limits);

}  // namespace hadal::server
