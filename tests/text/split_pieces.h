// Collects the pieces of a splitter, for the tests of splitters.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/splitter.h"

namespace hadal {

using Pieces = std::vector<std::string>;

// This budget is never used up, so that tests do not depend on the machine's speed.
inline constexpr std::chrono::hours kAnHour{1};

// Returns no piece of an empty text, which a splitter does not accept.
inline Pieces split(const Splitter& splitter, const std::string& text,
                    std::chrono::nanoseconds time = kAnHour) {
  Pieces out;
  SplitBudget budget(time);
  if (!text.empty()) splitter.split(text, budget, [&](std::string_view piece) { out.emplace_back(piece); });
  return out;
}

}  // namespace hadal
