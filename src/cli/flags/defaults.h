// Holds default values that both the commands and the help texts need.
#pragma once

#include <cstdint>

namespace hadal::cli {

inline constexpr int64_t kDefaultMaxNewTokens = 128;
inline constexpr int64_t kDefaultAnswerTokens = 1024;  // max_new_tokens of chat and eval

// A step on the CPU has this many prompt tokens: enough for full speed, and few enough that a step soon ends
// after Ctrl-C.
inline constexpr int64_t kDefaultPrefillChunk = 512;

// On the CPU, prompt tokens add about this many milliseconds at most to a step while another client's request
// generates, or as much as a step without prompt tokens takes if that is longer (engine/loop/step_pace.h). A
// step of the bundled model takes 1 to 8 ms without prompt tokens, so its streams hardly slow down.
inline constexpr int64_t kDefaultPrefillMs = 15;

// A step on a GPU has this many prompt tokens: the chunks are long, because a step reads the weights once for
// all of its tokens.
inline constexpr int64_t kDefaultGpuPrefillChunk = 8192;

}  // namespace hadal::cli
