// Holds default values that both the commands and the help texts need.
#pragma once

#include <cstdint>

namespace hadal::cli {

inline constexpr int64_t kDefaultMaxNewTokens = 128;
inline constexpr int64_t kDefaultAnswerTokens = 1024;  // max_new_tokens of chat and eval

// A step on the CPU has this many prompt tokens: enough for full speed, and few enough that Ctrl-C is noticed
// soon.
inline constexpr int64_t kDefaultPrefillChunk = 512;

// A step on a GPU has this many prompt tokens: the chunks are long, because a step reads the weights once for
// all of its tokens.
inline constexpr int64_t kDefaultGpuPrefillChunk = 8192;

}  // namespace hadal::cli
