// Splits a text into lines, for files that hold one JSON object per line.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace hadal::client {

struct TextLine {
  std::string_view text;  // without '\n'; points into the text that was split
  int64_t number = 0;     // from 1; blank lines are counted
};

// Returns the lines that are not blank, which means that they contain something other than white space.
std::vector<TextLine> lines_of(std::string_view text);

}  // namespace hadal::client
