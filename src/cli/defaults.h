// Built-in values that both the commands and the help texts name.
#pragma once

#include <cstdint>

namespace hadal::cli {

inline constexpr int64_t kDefaultMaxNewTokens = 128;
inline constexpr int64_t kDefaultAnswerTokens = 1024;  // max_new_tokens of chat and eval

// Prompt tokens a step on the CPU: enough for full speed, few enough that Ctrl-C is noticed soon.
inline constexpr int64_t kDefaultPrefillChunk = 512;

// On a GPU: long chunks, so that weights are read for many tokens at once; every batch has a graph.
inline constexpr int64_t kDefaultGpuPrefillChunk = 8192;
inline constexpr int64_t kDefaultGpuRunningRequests = 160;

}  // namespace hadal::cli
