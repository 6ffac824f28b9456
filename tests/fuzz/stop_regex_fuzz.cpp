// Fuzzes stop expressions: the input up to the first zero byte is a pattern, the rest is text. The search for
// an accepted pattern visits each instruction at most once for each character and for each end of a piece. It
// keeps no more text than it holds back, and shows the text before its match and nothing else. A check stops
// with the same character.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/stop/stop_regex.h"
#include "text/stop/stop_search.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hadal;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const auto patterns = StopPatterns::compile({}, {std::string(input.substr(0, zero))});
  if (!patterns.ok() || zero == input.npos || (*patterns)->empty()) return 0;
  // The slowest texts need no more than this.
  const std::string text = replace_invalid_utf8(input.substr(zero + 1, 2048));
  StopSearch search(*patterns);
  StopCheck check(*patterns);
  std::string shown;
  size_t num_characters = 0;
  for (size_t at = 0; at < text.size() && !search.stopped(); ++num_characters) {
    const size_t bytes = decode_valid_utf8(text.data() + at).num_bytes;
    shown += search.append(std::string_view(text).substr(at, bytes));
    HADAL_CHECK(check.append(std::string_view(text).substr(at, bytes)) == search.stopped());
    at += bytes;
    // A last newline is read twice.
    HADAL_CHECK(search.steps() <= 4 * (num_characters + 1) * kMaxStopRegexStates);
    HADAL_CHECK(search.stopped() || search.held_bytes() <= 2 * (at - shown.size()) + 4);
  }
  if (search.stopped()) {
    HADAL_CHECK(!search.matched().empty());
    HADAL_CHECK(text.starts_with(shown + search.matched()));
  } else {
    shown += search.finish();
    HADAL_CHECK(shown == text);
  }
  return 0;
}
