// Searches a stream of text for a regular expression, reading each byte once. RE2 was considered: it has
// neither incremental nor partial matching, so the whole answer would be searched again after every token,
// which is quadratic, and text that may begin a match could not be held back.
//
// A pattern is compiled to a program by Thompson's method, and the program is simulated by Pike's: with a
// list of threads in order of priority, which is the order in which a backtracking engine would try them. A
// thread stores its instruction and where its match began. No thread is added for an instruction that a
// thread of higher priority has reached at the same place, therefore
//   - work per character is at most one visit of each instruction, whatever the text;
//   - memory of a search is at most some 100 bytes for each instruction.
// The match is PCRE2's: the leftmost match, and among those the first in the order of alternatives, greedy
// before lazy. This header is internal to stop_search; tests and fuzzers use it too.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/stop/stop_regex_set.h"

namespace hadal {

struct StopRegexInstruction {
  enum class Op : uint8_t { kChar, kNotNewline, kAny, kSet, kAssertion, kSplit, kJump, kMatch };

  Op op = Op::kMatch;
  uint32_t value = 0;  // as in StopRegexNode
  uint32_t next = 0;   // the preferred branch of kSplit
  uint32_t other = 0;  // the other branch of kSplit

  bool reads() const { return op <= Op::kSet; }
};

// StopRegex is one expression. It is immutable: any number of threads may search with it.
class StopRegex {
 public:
  // Errors (kInvalidArgument) give the problem and its byte, without the pattern. A pattern of more than
  // `max_states` is an error too, which is detected before repeats are expanded.
  static Result<StopRegex> compile(std::string_view pattern, uint32_t max_states = kMaxStopRegexStates);
  uint32_t num_states() const { return num_states_; }
  // Returns the bytes that the program and the sets occupy besides this object.
  size_t bytes() const;
  // Returns the most bytes that a search occupies besides the StopRegexSearch itself.
  size_t search_bytes() const;

 private:
  friend class StopRegexSearch;
  friend class StopRegexMembers;
  friend class StopRegexTable;
  friend class StopRegexDetector;
  friend class StopRegexEmitter;

  void find_beginnings();

  std::vector<StopRegexInstruction> code_;
  std::vector<StopRegexSet> sets_;
  std::array<bool, 256> can_begin_{};  // first bytes of a match
  std::optional<uint32_t> words_;      // the set \w, if there is a \b
  bool sees_last_newline_ = false;     // $ or \Z: a newline at the text's end is special
  uint32_t num_states_ = 0;
};

// StopRegexMembers tells which characters belong to the sets of an expression. It remembers the last answer
// of each set, so an object is used by one thread at a time.
class StopRegexMembers {
 public:
  static constexpr uint32_t kNone = ~0U;  // there is no character

  // `regex` must outlive the object.
  explicit StopRegexMembers(const StopRegex& regex);
  bool contains(uint32_t set, uint32_t c);
  // Tells whether the character belongs to \w, if the expression depends on that.
  bool is_word(uint32_t c) { return regex_->words_ && contains(*regex_->words_, c); }
  // Returns the most bytes that an object occupies besides itself.
  static size_t bytes(const StopRegex& regex);

 private:
  struct Answer {
    uint32_t code_point = kNone;
    bool is_member = false;
  };

  const StopRegex* regex_;
  pcre2::MatchData match_data_;  // null: every set is answered without PCRE2
  std::vector<Answer> answers_;  // [sets], the last answer of each
};

// StopRegexPlace is a place between two characters of a stream, at which assertions hold or not.
struct StopRegexPlace {
  bool is_begin = true;
  bool is_end = false;
  bool is_last = false;  // the text ends after the next character
  bool after_newline = false;
  bool before_newline = false;
  bool after_word = false;
  bool before_word = false;

  bool holds(StopRegexAssertion assertion) const;
};

// StopRegexSearch searches one stream. After each piece, the result is the same as that of a search through
// the whole text so far, as if the text ended there.
class StopRegexSearch {
 public:
  struct Match {
    uint64_t begin = 0;  // bytes from the stream's first
    uint64_t end = 0;
  };

  // `regex` must outlive the search.
  explicit StopRegexSearch(const StopRegex& regex);

  // Reads a piece of whole, valid UTF-8 characters. Returns the match, which is never empty; after one, no
  // more pieces may follow.
  const std::optional<Match>& append(std::string_view piece);
  // Returns the first byte that can belong to a later match, or the end of the text if there is none.
  uint64_t hold() const { return hold_; }
  // Counts the instructions visited so far, for tests.
  uint64_t steps() const { return steps_; }

 private:
  friend class StopRegex;  // computes the size of a search
  static constexpr uint32_t kNone = StopRegexMembers::kNone;

  // A thread waits to visit `pc` until the next character is known.
  struct Thread {
    uint64_t begin;
    uint32_t pc;
  };
  struct State {
    std::vector<Thread> threads;  // in order of priority, therefore in order of `begin`
    std::optional<Match> match;   // has a lower priority than every thread
  };

  const char* skip(const char* at, const char* end);
  void read(State& state, bool is_last);
  void finish_piece(State& state);
  bool follow(const Thread& thread, bool is_last);
  bool holds(StopRegexAssertion assertion, bool is_last) const;

  const StopRegex* regex_;
  StopRegexMembers members_;
  State state_;
  State ended_;                 // `state_` as it would be if the text ended after its last newline
  std::vector<Thread> next_;    // the threads after the character that is being read
  std::vector<uint64_t> seen_;  // [instructions], the stamp of the last visit
  std::vector<uint32_t> stack_;
  uint64_t stamp_ = 0;
  uint64_t position_ = 0;  // bytes before next_char_
  uint64_t hold_ = 0;
  uint64_t steps_ = 0;
  uint32_t previous_char_ = kNone;
  uint32_t next_char_ = kNone;
  bool previous_is_word_ = false;
  bool next_is_word_ = false;
};

}  // namespace hadal
