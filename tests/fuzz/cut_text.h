// Reads an input for fuzzers of stream parsers: options, a text, and the places at which to cut it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace hadal::fuzz {

using Pieces = std::vector<std::string_view>;

// The input has a byte of options, the number of cuts (one byte, at most 15), two bytes for each cut, and the
// text. The bytes 1, 2, … of the text are replaced by `words` (at most eight), so that mutations find the
// long markers.
class CutText {
 public:
  CutText(const uint8_t* data, size_t size, std::initializer_list<std::string_view> words) {
    size_t at = 0;
    const auto next = [&] { return at < size ? data[at++] : uint8_t{0}; };
    options_ = next();
    cuts_.resize(next() % 16);
    for (size_t& cut : cuts_) {
      const size_t high = next();
      cut = high << 8 | next();
    }
    for (; at < size; ++at) {
      if (data[at] >= 1 && data[at] <= words.size())
        text_ += words.begin()[data[at] - 1];
      else
        text_ += static_cast<char>(data[at]);
    }
    for (size_t& cut : cuts_) cut %= text_.size() + 1;
    std::sort(cuts_.begin(), cuts_.end());
  }

  int options() const { return options_; }
  std::string_view text() const { return text_; }

  Pieces pieces() const {
    Pieces out;
    size_t at = 0;
    for (const size_t cut : cuts_) {
      out.push_back(text().substr(at, cut - at));
      at = cut;
    }
    out.push_back(text().substr(at));
    return out;
  }
  Pieces bytes() const {
    Pieces out;
    for (size_t i = 0; i < text_.size(); ++i) out.push_back(text().substr(i, 1));
    return out;
  }

 private:
  int options_ = 0;
  std::vector<size_t> cuts_;
  std::string text_;
};

}  // namespace hadal::fuzz
