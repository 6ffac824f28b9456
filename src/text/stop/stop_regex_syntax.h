// Defines the syntax of stop expressions, and the tree that a pattern becomes. The syntax is the part of
// PCRE2's syntax (and of Python's) that a linear-time search supports: literals, escapes, classes, `.`, the
// anchors `^ $ \A \z \Z \b \B`, alternation, groups, greedy and lazy repeats, the flags i, m, s and x.
// Whatever needs backtracking is an error that names the construct and its byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hadal {

// Limits the states of all expressions of a request: at worst, 1,024 states take some 10 µs per character of
// an answer.
inline constexpr uint32_t kMaxStopRegexStates = 1024;
inline constexpr size_t kMaxStopRegexBytes = 4096;  // length of one pattern
inline constexpr uint32_t kMaxStopRegexDepth = 64;  // groups inside one another
inline constexpr uint32_t kMaxStopRegexRepeat = 65535;
// A set that PCRE2 decides counts as this many states, because it takes some 16 times as long as a literal.
inline constexpr uint32_t kStopRegexSetStates = 16;
// Under the flag i, PCRE2 looks up the other case of each character of a class's ranges when it compiles the
// class, which takes 3 to 6 ms for all of Unicode. This many characters of ranges count as one state, so a
// request may have at most one range of all characters.
inline constexpr uint64_t kCaselessCharsPerState = 1114;

enum class StopRegexAssertion : uint32_t {
  kTextBegin,         // \A, ^
  kLineBegin,         // ^ with the flag m
  kTextEnd,           // \z
  kTextEndOrNewline,  // \Z, $: the end, or before a newline that is the last character
  kLineEnd,           // $ with the flag m
  kWordBoundary,      // \b
  kNoWordBoundary,    // \B
};

struct StopRegexNode {
  enum class Kind : uint8_t {
    kEmpty,
    kChar,
    kNotNewline,
    kAny,
    kSet,
    kAssertion,
    kSequence,
    kChoice,
    kRepeat
  };
  static constexpr uint32_t kUnlimited = ~0U;  // max without a limit

  Kind kind = Kind::kEmpty;
  bool is_lazy = false;
  bool matches_empty = true;       // a path through the node reads no character
  uint32_t value = 0;              // code point, number of the set, or StopRegexAssertion
  uint32_t min = 0;                // kRepeat only
  uint32_t max = 0;                // kRepeat only
  uint32_t size = 0;               // instructions of its program, repeats expanded
  std::vector<uint32_t> children;  // numbers of nodes; the one child of kRepeat
};

// Returns the number of instructions of `node` repeated without a limit at least once.
constexpr uint64_t stop_regex_loop_size(const StopRegexNode& node) {
  return node.matches_empty ? 2 * uint64_t{node.size} + 2 : uint64_t{node.size} + 1;
}

// Describes one character of a kind: the text of a class or an escape in PCRE2's notation, or a literal in
// either case.
struct StopRegexSetText {
  std::string text;
  bool is_caseless = false;
  size_t at = 0;  // its byte in the pattern
};

struct StopRegexTree {
  std::vector<StopRegexNode> nodes;
  std::vector<StopRegexSetText> sets;
  uint32_t root = 0;
  uint32_t num_states = 0;  // of the root, the final instruction and the sets
};

// Describes a construct that a linear-time search does not support: how the construct begins, and its name
// with a verb.
struct StopRegexRefusal {
  std::string_view begins;
  std::string_view what;
};
Status stop_regex_refusal(std::string_view what, std::string_view construct, size_t at);

// Returns the number of bytes of the class or of the escape that begins at `begin`. Errors are those of
// parse_stop_regex.
Result<size_t> stop_regex_class_size(std::string_view pattern, size_t begin);
Result<size_t> stop_regex_escape_size(std::string_view pattern, size_t begin);

// Returns how many characters the ranges of a class have, counted with repetitions. `text` is a class as
// stop_regex_class_size cuts it out. The count may include text that PCRE2 does not read as a range.
uint64_t stop_regex_range_chars(std::string_view text);

// Parses a pattern of valid UTF-8. It never expands a repeat, so time and memory are proportional to the
// length of the pattern. Errors (kInvalidArgument) give the problem and its byte; more than `max_states` is
// an error too.
Result<StopRegexTree> parse_stop_regex(std::string_view pattern, uint32_t max_states);

}  // namespace hadal
