// Holds a text in which some ranges came from a client and the rest came from the chat format.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hadal {

struct TextRange {
  size_t begin = 0;
  size_t end = 0;
};

struct MarkedText {
  std::string text;  // UTF-8
  // Lists the ranges that came from the client, in order. No range is empty, and no two ranges touch.
  std::vector<TextRange> content;

  // Appends text of the format.
  MarkedText& add(std::string_view fixed) {
    text += fixed;
    return *this;
  }
  // Appends text of the client.
  MarkedText& add_content(std::string_view written) {
    if (!written.empty()) mark(text.size(), text.size() + written.size());
    text += written;
    return *this;
  }
  MarkedText& add(const MarkedText& other) {
    for (const TextRange& range : other.content) mark(text.size() + range.begin, text.size() + range.end);
    text += other.text;
    return *this;
  }

  // Returns the text of the format alone.
  std::string without_content() const {
    std::string out;
    size_t at = 0;
    for (const TextRange& range : content) {
      out.append(text, at, range.begin - at);
      at = range.end;
    }
    return out.append(text, at, std::string::npos);
  }

 private:
  void mark(size_t begin, size_t end) {
    if (!content.empty() && content.back().end == begin) {
      content.back().end = end;
    } else {
      content.push_back({begin, end});
    }
  }
};

}  // namespace hadal
