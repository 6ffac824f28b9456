// Tells after each piece of a stream whether a regular expression matches in it, but not where. It finds a
// match with the same piece as StopRegexSearch, in a fraction of the time: without priorities and beginnings
// of matches, the threads of a search are a set, which is stored as bits and moved over a character by a few
// operations on words. At worst, 1,024 states take about 1 µs per character. This header is internal to
// stop_search; tests and fuzzers use it too.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "text/stop/stop_regex.h"

namespace hadal {

// StopRegexTable holds an expression's program in the form that a detector needs. It numbers the instructions
// that a thread can wait at (those that read a character, assertions and the final one) in their order, and
// stores for each of them the set of those that come after it. It is immutable: any number of threads may use
// it.
class StopRegexTable {
 public:
  // `regex` must outlive the table.
  explicit StopRegexTable(const StopRegex& regex);
  // Returns the bytes that the table occupies besides this object.
  size_t bytes() const;
  // Returns the most bytes that a detector occupies besides the StopRegexDetector itself.
  size_t detector_bytes() const;

 private:
  friend class StopRegexDetector;
  using Word = uint64_t;
  static constexpr size_t kNumAssertions = 7;

  static constexpr size_t kNumSteps = 8;

  // A range of parts_: the words of a set that are not zero.
  struct Parts {
    uint32_t begin = 0;
    uint32_t end = 0;
  };
  struct Part {
    uint32_t word = 0;
    Word bits = 0;
  };
  // What comes after a member, and the members after which nothing comes that does not come after this one
  // too. The latter need not be followed any more, so a chain of optional parts costs one row, not one each.
  struct Row {
    Parts follows, settles;
  };

  void add_member(const StopRegexInstruction& instruction, size_t member);
  template <typename Ways>
  void add_rows(Ways& ways, bool has_steps);
  Parts add_parts(const std::vector<Word>& set);

  const StopRegex* regex_;
  size_t num_words_ = 0;         // of a set
  size_t match_ = 0;             // number of the final instruction
  std::vector<Word> start_;      // [num_words_], where a match begins; without the final instruction
  std::vector<Word> ascii_;      // [128, num_words_], those that read the character
  std::vector<Word> any_other_;  // [num_words_], those that read every character from 128 on
  std::vector<std::pair<uint32_t, uint32_t>> others_;  // (character from 128 on, member), sorted
  std::vector<Word> sets_;                             // [sets of the expression, num_words_]
  std::vector<Word> assertions_;  // [kNumAssertions, num_words_]; empty if there are none
  // [kNumSteps, num_words_]: entry d has the readers of number i after which the member i + d comes.
  std::vector<Word> steps_;
  std::vector<Word> has_row_;     // [num_words_], members after which others come too
  std::vector<uint32_t> row_of_;  // [members], in rows_
  std::vector<Row> rows_;
  std::vector<Part> parts_;
};

class StopRegexDetector {
 public:
  // `table` must outlive the detector.
  explicit StopRegexDetector(const StopRegexTable& table);

  // Reads a piece of whole, valid UTF-8 characters. Returns true if StopRegexSearch finds a match with it;
  // then no more pieces may follow.
  bool append(std::string_view piece);
  // Counts the rows of the table that were added so far, for tests.
  uint64_t num_rows() const { return num_rows_; }

 private:
  using Word = StopRegexTable::Word;
  using Bits = std::vector<Word>;

  const char* skip(const char* at, const char* end);
  bool read(Bits& bits, uint32_t c, bool is_last);
  bool matches_at_end(const Bits& bits);
  void expand(Bits& bits);
  void set_place(uint32_t next, bool is_last);
  void keep_readers(Bits& bits, uint32_t c);
  void follow(size_t member, Bits& to);
  bool has_match(const Bits& bits) const;

  const StopRegexTable* table_;
  StopRegexMembers members_;
  Bits bits_;                 // those that wait for the next character
  Bits ended_;                // scratch: `bits_` as they would be if the text ended after its last newline
  Bits next_, from_, holds_;  // scratch
  Bits settled_;              // scratch: members that need not be followed any more
  bool is_waiting_ = false;   // any of bits_
  bool repeats_ = false;      // the last character was read twice without an effect on bits_
  StopRegexPlace place_;
  uint64_t num_rows_ = 0;
  uint32_t previous_char_ = StopRegexMembers::kNone;
};

}  // namespace hadal
