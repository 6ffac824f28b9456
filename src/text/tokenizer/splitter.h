// A Splitter is one step that cuts text into pieces. A pattern is executed by the first of these that
// supports it:
//   - DeepSeek V3's three patterns in a row, recognised by their text: one hand-written pass (split_v3.cpp);
//   - a class with a repeat, like "[一-龥]+", "\s?[A-Za-z]+" or "\p{N}{1,3}", and "\s+$": a linear pass over
//     a table of code points (split_run.cpp), which covers V2's patterns and the rest of V3's;
//   - any other regular expression: PCRE2 with JIT (split_pcre2.cpp).
// Only the PCRE2 splitter depends on a library's Unicode version and can take more than linear time, so only
// it has limits.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "text/tokenizer/unicode_classes.h"

namespace hadal {

using PieceSink = FunctionRef<void(std::string_view)>;

// PatternLimitError says that a checkpoint's pattern takes too long on a text; it names the pattern and the
// limit.
class PatternLimitError : public Error {
 public:
  using Error::Error;
};

// SplitBudget is the processor time that PCRE2 may use on one text, for all of its pieces and all patterns
// together. The budget is fifty times the time that usual patterns need (five times without JIT), so only
// patterns whose time is not linear in the text use it up.
class SplitBudget {
 public:
  explicit SplitBudget(size_t text_bytes)
      : left_(std::chrono::milliseconds(50) + text_bytes * std::chrono::microseconds(1)) {}
  explicit SplitBudget(std::chrono::nanoseconds time) : left_(time) {}

  // Subtracts time that was used; returns false if less than that was left.
  bool take(std::chrono::nanoseconds used) {
    left_ -= used;
    return left_.count() >= 0;
  }

 private:
  std::chrono::nanoseconds left_;
};

class Splitter {
 public:
  virtual ~Splitter() = default;
  // Calls sink for every match in `text` (valid UTF-8, not empty) and for every stretch between matches, in
  // order; none of them is empty. Any number of threads may call it at once, each with its own budget. It
  // throws PatternLimitError when the budget is used up or a piece needs more than PCRE2's limits.
  virtual void split(std::string_view text, SplitBudget& budget, PieceSink sink) const = 0;
};

// These return null if that kind of splitter does not support the pattern. `classes` must outlive the
// splitter.
std::unique_ptr<Splitter> make_run_splitter(std::string_view pattern, const CodePointTable& classes);
std::unique_ptr<Splitter> make_digits_splitter(bool individual, const CodePointTable& classes);
std::unique_ptr<Splitter> make_v3_splitter(const CodePointTable& classes);

// Returns the pattern of V3's n-th step (0, 1, 2), as published.
std::string_view v3_pattern(int step);

// The errors are kDataLoss and kUnsupported, as in PreTokenizer::make.
Result<std::unique_ptr<Splitter>> make_pcre2_splitter(std::string_view pattern);

}  // namespace hadal
