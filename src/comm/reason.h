// Reason is one line of text that is written without allocating, and is cut if it is too long. The reason why
// a group of ranks became unusable must be kept even when no memory is left.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

namespace hadal {

class Reason {
 public:
  template <typename... Args>
  void append(fmt::format_string<Args...> pattern, Args&&... args) noexcept {
    const size_t room = text_.size() - size_;
    const auto written = fmt::format_to_n(text_.data() + size_, room, pattern, std::forward<Args>(args)...);
    size_ += std::min<size_t>(written.size, room);
  }
  std::string_view text() const { return {text_.data(), size_}; }

 private:
  std::array<char, 1000> text_{};
  size_t size_ = 0;
};

}  // namespace hadal
