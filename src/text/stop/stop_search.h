// Finds the end of a stream of text: the first of some strings or the first match of some regular
// expressions. Text that could still become part of a match is held back, and nothing from the match on is
// returned.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/stop/stop_matcher.h"
#include "text/stop/stop_regex_syntax.h"

namespace hadal {

inline constexpr size_t kMaxStopRegexes = 8;  // of one answer

// StopRegexBudget holds the states that the expressions of one request may still use. A request may have
// several StopPatterns, one for each of its prompts, and all of them share one budget.
struct StopRegexBudget {
  uint32_t states = kMaxStopRegexStates;
};

// StopPatterns holds the compiled patterns of one answer. It is immutable: any number of threads may search
// with it.
class StopPatterns {
 public:
  // `regexes` use the part of PCRE2's syntax (and of Python's) that stop_regex_syntax.h names, with Unicode
  // classes. The states that they need are subtracted from `budget`. The error is kInvalidArgument with the
  // entry, the pattern, the problem and its place. More than kMaxStopRegexes expressions are an error, and so
  // are more states than the budget has left.
  static Result<std::shared_ptr<const StopPatterns>> compile(const std::vector<std::string>& strings,
                                                             const std::vector<std::string>& regexes,
                                                             StopRegexBudget& budget);
  // Does the same with a budget of its own.
  static Result<std::shared_ptr<const StopPatterns>> compile(const std::vector<std::string>& strings,
                                                             const std::vector<std::string>& regexes) {
    StopRegexBudget budget;
    return compile(strings, regexes, budget);
  }
  ~StopPatterns();
  bool empty() const { return size() == 0; }
  size_t size() const;  // strings and expressions
  size_t num_regexes() const;
  // These return the bytes of memory that the patterns take, and upper estimates of the bytes that one search
  // takes, without the text that is held back for expressions, and that one check takes.
  size_t bytes() const;
  size_t search_bytes() const;
  size_t check_bytes() const;

 private:
  friend class StopSearch;
  friend class StopCheck;
  struct Impl;
  explicit StopPatterns(std::unique_ptr<Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// StopSearch reads one stream. It is used by one thread at a time; two searches with the same pieces end at
// the same place. A regular expression ends the stream with the first piece after which it is found, like a
// search that is repeated after every token: leftmost, greedy as in PCRE2, and never empty. Each byte is read
// once, with at most kMaxStopRegexStates steps for all expressions together, so no search can fail. A search
// takes its patterns' search_bytes() and twice the size of the text that is held back.
class StopSearch {
 public:
  explicit StopSearch(std::shared_ptr<const StopPatterns> patterns, bool no_stop_trim = false);
  ~StopSearch();
  StopSearch(StopSearch&&) noexcept;
  StopSearch& operator=(StopSearch&&) noexcept;

  // Adds a piece (whole UTF-8 characters) and returns the text that may be shown now. After a stop it returns
  // nothing. The view is valid until the next call.
  std::string_view append(std::string_view piece);
  // Returns the text that was held back. Call it when the stream has ended without a stop.
  std::string_view finish();
  bool stopped() const { return stopped_; }
  // Returns the stop string, or the text that the expression matched.
  const std::string& matched() const { return matched_; }

  // These return the steps of the expressions so far and the bytes of text that are kept for them. Only tests
  // use them.
  uint64_t steps() const;
  size_t held_bytes() const;

 private:
  friend class StopPatterns;  // computes the size of a search
  struct Regexes;

  std::shared_ptr<const StopPatterns> patterns_;
  StopMatcher strings_;
  std::unique_ptr<Regexes> regexes_;  // null when there are none
  bool no_stop_trim_;
  bool stopped_ = false;
  std::string matched_;
  std::string out_;
};

class StopRegexDetector;  // stop_regex_detector.h

// StopCheck tells only with which piece a StopSearch with the same patterns stops. It costs a small part of
// the search: with expressions of 1,024 states 0.1 to 1 µs per character instead of 10.
class StopCheck {
 public:
  explicit StopCheck(std::shared_ptr<const StopPatterns> patterns);
  ~StopCheck();
  StopCheck(StopCheck&&) noexcept;
  StopCheck& operator=(StopCheck&&) noexcept;

  // Adds a piece (whole UTF-8 characters). Returns true from the piece on with which the stream ends.
  bool append(std::string_view piece);

 private:
  std::shared_ptr<const StopPatterns> patterns_;
  StopMatcher strings_;
  std::vector<StopRegexDetector> detectors_;
  bool stopped_ = false;
};

}  // namespace hadal
