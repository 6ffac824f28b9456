#include "text/tokenizer/pre_tokenizer.h"

#include <string>

namespace hadal {

namespace {

// This is ByteLevel's own split (use_regex), which is GPT-2's pattern.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Replaces escapes of line breaks in a regular expression by the line breaks themselves, so that both
// spellings compare equal.
std::string with_plain_line_breaks(std::string_view pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char next = pattern[i] == '\\' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (next == '\0') {
      out += pattern[i];
      continue;
    }
    ++i;
    if (next == 'r' || next == 'n')
      out += next == 'r' ? '\r' : '\n';
    else
      out.append(1, '\\').append(1, next);
  }
  return out;
}

bool is_pattern(const std::vector<PreTokenizerStep>& steps, size_t step, std::string_view pattern) {
  if (step >= steps.size()) return false;
  const auto* split = std::get_if<SplitStep>(&steps[step]);
  return split != nullptr && with_plain_line_breaks(split->pattern) == pattern;
}

// Cuts with splitters[step] and passes every piece to the next step.
void run_steps(const std::vector<std::unique_ptr<Splitter>>& splitters, size_t step, std::string_view text,
               SplitBudget& budget, PieceSink word) {
  if (step == splitters.size()) return word(text);
  if (step + 1 == splitters.size()) return splitters[step]->split(text, budget, word);
  splitters[step]->split(
      text, budget, [&](std::string_view piece) { run_steps(splitters, step + 1, piece, budget, word); });
}

}  // namespace

Result<std::unique_ptr<PreTokenizer>> PreTokenizer::make(const std::vector<PreTokenizerStep>& steps,
                                                         const CodePointTable& classes) {
  auto out = std::make_unique<PreTokenizer>();
  const auto add_pattern = [&](std::string_view pattern) -> Result<void> {
    auto splitter = make_run_splitter(pattern, classes);
    if (splitter == nullptr) {
      HADAL_ASSIGN_OR_RETURN(splitter, make_pcre2_splitter(pattern));
    }
    out->splitters_.push_back(std::move(splitter));
    return {};
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    if (is_pattern(steps, i, v3_pattern(0)) && is_pattern(steps, i + 1, v3_pattern(1)) &&
        is_pattern(steps, i + 2, v3_pattern(2))) {
      out->splitters_.push_back(make_v3_splitter(classes));
      i += 2;
    } else if (const auto* split = std::get_if<SplitStep>(&steps[i])) {
      HADAL_RETURN_IF_ERROR(add_pattern(split->pattern));
    } else if (const auto* digits = std::get_if<DigitsStep>(&steps[i])) {
      out->splitters_.push_back(make_digits_splitter(digits->individual, classes));
    } else if (const auto* byte_level = std::get_if<ByteLevelStep>(&steps[i])) {
      if (byte_level->use_regex) HADAL_RETURN_IF_ERROR(add_pattern(kGpt2Pattern));
    }
  }
  return out;
}

void PreTokenizer::for_each_word(std::string_view text, SplitBudget& budget,
                                 FunctionRef<void(std::string_view)> word) const {
  if (text.empty()) return;
  run_steps(splitters_, 0, text, budget, word);
}

}  // namespace hadal
