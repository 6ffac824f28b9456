// StopRegexSet is a set of characters of a stop expression. PCRE2 decides which characters are members, so
// classes and Unicode properties have exactly PCRE2's meaning. It receives one character at a time, so it
// cannot backtrack.
#pragma once

#include <array>
#include <cstdint>

#include "base/result.h"
#include "text/stop/pcre2_handles.h"
#include "text/stop/stop_regex_syntax.h"

namespace hadal {

// A set is immutable: any number of threads may query it, each with its own match data.
class StopRegexSet {
 public:
  // Errors (kInvalidArgument) give PCRE2's reason and the byte in the pattern.
  static Result<StopRegexSet> compile(const StopRegexSetText& text);

  bool contains_ascii(uint32_t code_point) const {
    return (ascii_[code_point >> 6] >> (code_point & 63) & 1) != 0;
  }
  // Answers for code points from 128 on. A call takes some 100 ns and allocates nothing.
  bool contains_other(uint32_t code_point, pcre2_match_data* match) const;
  // Tells whether the UTF-8 of a member can begin with this byte, which is 0x80 or above. The result true may
  // be wrong; the result false is always right.
  bool can_begin_with(uint8_t byte) const;
  // Returns the bytes of memory that PCRE2 uses for the set.
  size_t bytes() const;

 private:
  std::array<uint64_t, 2> ascii_{};  // bits of the members below 128
  uint32_t other_ = 0;               // without code_: the only member from 128 on; 0: none
  pcre2::Code code_;                 // one or more of the members
};

}  // namespace hadal
