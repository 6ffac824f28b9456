// Does a prompt and its answer fit? Decided before the engine is asked, so that what can never fit is the
// client's fault (400) and not the moment's (503). Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"

namespace hadal::server {

struct PromptLimits {
  int64_t context_length = 0;    // prompt plus answer
  int64_t max_total_tokens = 0;  // of the KV cache
  bool allow_auto_truncate = false;
};

// Whether the prompt, which must not be empty, leaves room for one token.
bool prompt_fits(const std::vector<int32_t>& prompt, const PromptLimits& limits);

// The answer's length: `wanted`, or where the client gave none `fallback` lowered to what fits. With
// allow_auto_truncate a prompt that does not fit loses its end, as much as the answer needs but no more than
// down to half of the room, and a `wanted` that still does not fit is lowered; else both are kInvalidArgument
// naming counts and limit. A prompt needs at least one token of room. `fallback` of nullopt: all that fits.
Result<int64_t> fit_prompt(std::vector<int32_t>& prompt, std::optional<int64_t> wanted,
                           std::optional<int64_t> fallback, const PromptLimits& limits);

}  // namespace hadal::server
