// Cuts text into the words on which byte-pair merging works, by the steps that tokenizer.json lists. The
// steps are data; splitter.h chooses once, at build, how each step is executed. A pre-tokenizer is immutable
// after build.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "text/tokenizer/splitter.h"
#include "text/tokenizer/tokenizer_file.h"
#include "text/tokenizer/unicode_classes.h"

namespace hadal {

class PreTokenizer {
 public:
  // `classes` must outlive the pre-tokenizer. The errors are kDataLoss for a pattern that is not a regular
  // expression, and kUnsupported for a pattern whose meaning differs between the reference's regex engine and
  // ours.
  static Result<std::unique_ptr<PreTokenizer>> make(const std::vector<PreTokenizerStep>& steps,
                                                    const CodePointTable& classes);

  // Calls word(piece) for every word of `text` (valid UTF-8), in order; joined, the words are the text.
  // Throws PatternLimitError, as Splitter::split.
  void for_each_word(std::string_view text, SplitBudget& budget,
                     FunctionRef<void(std::string_view)> word) const;

 private:
  std::vector<std::unique_ptr<Splitter>> splitters_;
};

}  // namespace hadal
