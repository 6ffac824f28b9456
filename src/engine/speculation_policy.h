// Decides how many tokens a step may sample for each request that speculates. The functions are pure, so a
// record of plans, which contains the width, can be replayed.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hadal {

// A step verifies at most this many rows, whatever the width: beyond it memory for logits grows without more
// tokens a second.
inline constexpr int64_t kMaxVerifiedRows = 1024;

// Returns the width of the next step: max_width (0: no speculation), or less if so many requests run that
// they would have more than kMaxVerifiedRows rows together, at least 1.
inline int64_t step_width(int64_t max_width, int64_t num_running) {
  return std::clamp<int64_t>(kMaxVerifiedRows / std::max<int64_t>(num_running, 1), 1,
                             std::max<int64_t>(max_width, 1));
}

}  // namespace hadal
