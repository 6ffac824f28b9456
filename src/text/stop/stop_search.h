// Finds the end of a stream of text: the first of some strings or the first match of some regular
// expressions. Whatever could still become either is held back, and nothing from the match on is returned.
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

// StopRegexBudget is what the expressions of one request may still need. A request may have several
// StopPatterns, one for each of its prompts; they use one budget.
struct StopRegexBudget {
  uint32_t states = kMaxStopRegexStates;
};

// StopPatterns holds the compiled patterns of one answer. It is immutable: any number of threads may search
// with it.
class StopPatterns {
 public:
  // `regexes` use the part of PCRE2's syntax (and of Python's) that stop_regex_syntax.h names, with Unicode
  // classes. What they need is taken from `budget`. The error is kInvalidArgument with the entry, the
  // pattern, the problem and its place. More than kMaxStopRegexes are an error, and so are more states than
  // the budget has left.
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
  // Returns the bytes of memory that the patterns take, and an upper estimate of those of one search, without
  // the text that it holds back for expressions.
  size_t bytes() const;
  size_t search_bytes() const;

 private:
  friend class StopSearch;
  struct Impl;
  explicit StopPatterns(std::unique_ptr<Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// StopSearch reads one stream. It is used by one thread at a time; two searches with the same pieces end at
// the same place. A regular expression ends the stream with the first piece after which it is found, like a
// search that is repeated after every token: leftmost, greedy as in PCRE2, and never empty. Each byte is read
// once, with at most kMaxStopRegexStates steps for all expressions together, so no search can fail. It keeps
// search_bytes() of its patterns, and twice the text that is held back.
class StopSearch {
 public:
  explicit StopSearch(std::shared_ptr<const StopPatterns> patterns, bool no_stop_trim = false);
  ~StopSearch();
  StopSearch(StopSearch&&) noexcept;
  StopSearch& operator=(StopSearch&&) noexcept;

  // Adds a piece (whole UTF-8 characters) and returns what may be shown now; nothing after a stop. The view
  // is valid until the next call.
  std::string_view append(std::string_view piece);
  // Call this when the stream has ended without a stop. Returns what was held back.
  std::string_view finish();
  bool stopped() const { return stopped_; }
  // Returns the string or the text that the expression matched.
  const std::string& matched() const { return matched_; }

  // These count the steps of the expressions so far, and the bytes of text that are kept for them, for tests.
  uint64_t steps() const;
  size_t held_bytes() const;

 private:
  friend class StopPatterns;  // which knows how large a search is
  struct Regexes;

  std::shared_ptr<const StopPatterns> patterns_;
  StopMatcher strings_;
  std::unique_ptr<Regexes> regexes_;  // null when there are none
  bool no_stop_trim_;
  bool stopped_ = false;
  std::string matched_;
  std::string out_;
};

}  // namespace hadal
