// Checks whether a prompt and its answer fit. This is decided before the engine is called, so that a request
// that can never fit is a client's error (400) and not a temporary one (503). Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"

namespace hadal::server {

struct PromptLimits {
  int64_t context_length = 0;    // limit of prompt plus answer
  int64_t max_total_tokens = 0;  // capacity of the KV cache
  bool allow_auto_truncate = false;
};

// True if the prompt, which must not be empty, leaves room for one token.
bool prompt_fits(const std::vector<int32_t>& prompt, const PromptLimits& limits);

// Returns the answer's length: `wanted`, or, if the client gave none, `fallback` lowered to what fits
// (nullopt: everything that fits). With allow_auto_truncate a prompt that does not fit loses its end, as much
// as the answer needs but at most down to half of the room, and a `wanted` that still does not fit is
// lowered; otherwise both are kInvalidArgument, which names counts and limit. A prompt needs at least one
// token of room.
Result<int64_t> fit_prompt(std::vector<int32_t>& prompt, std::optional<int64_t> wanted,
                           std::optional<int64_t> fallback, const PromptLimits& limits);

}  // namespace hadal::server
