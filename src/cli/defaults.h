// Default values that both the commands and the help texts need.
#pragma once

#include <cstdint>

namespace hadal::cli {

inline constexpr int64_t kDefaultMaxNewTokens = 128;
inline constexpr int64_t kDefaultAnswerTokens = 1024;  // max_new_tokens of chat and eval

// Prompt tokens per step on the CPU: enough for full speed, and few enough that Ctrl-C is noticed soon.
inline constexpr int64_t kDefaultPrefillChunk = 512;

// Prompt tokens per step on a GPU: long chunks, because a step reads the weights once for all of its tokens.
inline constexpr int64_t kDefaultGpuPrefillChunk = 8192;

}  // namespace hadal::cli
