// Finds the end of a stream of text: the first of some strings or the first match of some regular
// expressions. Whatever could still become either is held back, and nothing from the match on is returned.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/stop_matcher.h"

namespace hadal {

inline constexpr size_t kMaxStopRegexes = 8;  // per request, because all of them run after each of its tokens

// The compiled patterns of one request. Immutable: any number of threads may search with it.
class StopPatterns {
 public:
  // `regexes` use PCRE2's syntax (which covers most of Python's) with Unicode classes. Errors:
  // kInvalidArgument with the pattern, the problem and its place; more than kMaxStopRegexes.
  static Result<std::shared_ptr<const StopPatterns>> compile(const std::vector<std::string>& strings,
                                                             const std::vector<std::string>& regexes);
  ~StopPatterns();
  bool empty() const { return size() == 0; }
  size_t size() const;  // strings and expressions
  size_t num_regexes() const;

 private:
  friend class StopSearch;
  struct Impl;
  explicit StopPatterns(std::unique_ptr<Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// One stream. Used by one thread at a time; two searches with the same pieces end at the same place. A
// regular expression ends the stream with the first piece after which it is found, like a search that is
// repeated after every token. The work per piece is bounded for all expressions together: if one exceeds its
// share (backtracking), the search fails and shows nothing more.
class StopSearch {
 public:
  explicit StopSearch(std::shared_ptr<const StopPatterns> patterns, bool no_stop_trim = false);
  ~StopSearch();
  StopSearch(StopSearch&&) noexcept;
  StopSearch& operator=(StopSearch&&) noexcept;

  // Adds a piece (whole UTF-8 characters) and returns what may be shown now; nothing after a stop. The view
  // is valid until the next call.
  std::string_view append(std::string_view piece);
  // The stream ended without a stop: returns what was held back.
  std::string_view finish();
  bool stopped() const { return stopped_; }
  // Returns why the search failed, or an empty string. A failed search has stopped too.
  const std::string& failure() const { return failure_; }
  // The string or the text that the expression matched.
  const std::string& matched() const { return matched_; }

 private:
  struct Regexes;

  std::shared_ptr<const StopPatterns> patterns_;
  StopMatcher strings_;
  std::unique_ptr<Regexes> regexes_;  // null when there are none
  bool no_stop_trim_;
  bool stopped_ = false;
  std::string matched_;
  std::string failure_;
  std::string text_;     // everything so far, when there are regexes
  size_t shown_ = 0;     // bytes of text_ that were returned
  size_t released_ = 0;  // bytes that the string matcher let through
  std::string out_;
};

}  // namespace hadal
