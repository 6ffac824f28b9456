// One step that cuts text into pieces. A pattern is executed by the first of these that supports it:
//   - DeepSeek V3's three patterns in a row, recognised by their text: one hand-written pass (split_v3.cpp);
//   - a class with a repeat, like "[一-龥]+", "\s?[A-Za-z]+" or "\p{N}{1,3}", and "\s+$": a linear pass over
//     a table of code points (split_run.cpp), which covers V2's patterns and the rest of V3's;
//   - any other regular expression: PCRE2 with JIT (split_pcre2.cpp).
// Only the last depends on a library's Unicode version and can take more than linear time.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "text/unicode_classes.h"

namespace hadal {

using PieceSink = FunctionRef<void(std::string_view)>;

class Splitter {
 public:
  virtual ~Splitter() = default;
  // Calls sink for every match in `text` (valid UTF-8, not empty) and for every stretch between matches, in
  // order; none of them is empty. Any number of threads at once.
  virtual void split(std::string_view text, PieceSink sink) const = 0;
};

// Returns null if the kind does not support the pattern. `classes` must outlive the splitter.
std::unique_ptr<Splitter> make_run_splitter(std::string_view pattern, const CodePointTable& classes);
std::unique_ptr<Splitter> make_digits_splitter(bool individual, const CodePointTable& classes);
std::unique_ptr<Splitter> make_v3_splitter(const CodePointTable& classes);

// Returns the pattern of V3's n-th step (0, 1, 2), as published.
std::string_view v3_pattern(int step);

// Errors: kDataLoss and kUnsupported, as in PreTokenizer::make.
Result<std::unique_ptr<Splitter>> make_pcre2_splitter(std::string_view pattern);

}  // namespace hadal
