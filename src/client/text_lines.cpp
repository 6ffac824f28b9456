#include "client/text_lines.h"

#include <algorithm>

namespace hadal::client {

std::vector<TextLine> lines_of(std::string_view text) {
  std::vector<TextLine> lines;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r\v\f") != std::string_view::npos) lines.push_back({line, number});
  }
  return lines;
}

}  // namespace hadal::client
