// Executes any other pattern of a tokenizer file with PCRE2 and JIT. The reference's engine has Ruby's
// syntax: constructs with the same meaning in both engines are kept, and constructs whose meaning differs are
// refused. `\s` is expanded, because PCRE2 counts U+180E as white space and the reference does not.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <memory>

#include "base/check.h"
#include "base/printable.h"
#include "text/stop/pcre2_handles.h"
#include "text/tokenizer/splitter.h"

namespace hadal {

namespace {

// This is the property White_Space in the notation of a class.
constexpr std::string_view kSpaceSet =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// Translates a pattern from Ruby's to PCRE2's notation.
Result<std::string> translate(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (c == '\\') {
      ++i;
      if (next == 's') {
        out += in_class ? std::string(kSpaceSet) : "[" + std::string(kSpaceSet) + "]";
      } else if (next == 'S' && !in_class) {
        out += "[^" + std::string(kSpaceSet) + "]";
      } else if (next == 'S' || next == 'h' || next == 'H' || next == 'Z' || next == 'R' || next == 'X' ||
                 next == 'K' || next == 'G') {
        return unsupported("\\{}{} has no equivalent in PCRE2", next, in_class ? " inside a class" : "");
      } else {
        out += c;
        if (next != '\0') out += next;
      }
    } else if (in_class && ((c == '[') || (c == '&' && next == '&'))) {
      return unsupported("nested and intersected classes have no equivalent in PCRE2");
    } else if (!in_class && c == '(' && next == '*') {
      return unsupported("(* starts a verb in PCRE2, but not in Ruby");
    } else if (c == '(' && next == '?' && i + 2 < pattern.size() && pattern[i + 2] == 'm') {
      return unsupported("(?m) means something else in PCRE2 than in Ruby");
    } else {
      if (c == '[') {
        in_class = true;
        // The first "]" after "[" or "[^" is an ordinary character in PCRE2, an empty class in Ruby.
        if (next == ']' || (next == '^' && i + 2 < pattern.size() && pattern[i + 2] == ']'))
          return unsupported("an empty class has no equivalent in PCRE2");
      } else if (c == ']') {
        in_class = false;
      }
      out += c;
    }
  }
  return out;
}

using pcre2::Code;
using pcre2::CompileContext;
using pcre2::JitStack;
using pcre2::MatchContext;
using pcre2::MatchData;

// The pattern and the text are not trusted, and matching by backtracking can take exponential time and
// memory. Therefore a window of text and a number of steps limit each attempt at a match, and the budget
// limits all attempts together. An attempt reads a small window after its beginning. The window grows as long
// as the attempt reaches its end (PCRE2's partial matching reports that), so the pieces are those of the
// whole text. A step may read the whole window, so a larger window allows fewer steps.
constexpr size_t kFirstWindow = 4 << 10;  // bytes
constexpr size_t kMaxWindow = 256 << 10;
constexpr uint32_t kFirstSteps = 1024;
constexpr uint32_t kMaxStepBytes = 1U << 26;  // steps times bytes of the window, some 0.1 s
constexpr uint32_t kMaxHeapKib = 64 << 10;    // of an attempt; used only where JIT is not available
constexpr size_t kJitStackBytes = size_t{16} << 20;
constexpr size_t kMaxPatternBytes = 64 << 10;
constexpr size_t kBatch = 16;  // attempts between two readings of the clock
constexpr size_t kNoMatch = std::string_view::npos;

std::chrono::nanoseconds thread_time() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

// Attempts tries to match the pattern in one text, within the limits.
class Attempts {
 public:
  Attempts(const pcre2_code* code, std::string_view pattern, std::string_view text, SplitBudget& budget)
      : code_(code), pattern_(pattern), text_(text), budget_(budget) {
    HADAL_CHECK(match_ && context_ && stack_, "out of memory");
    pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
    pcre2_set_heap_limit(context_.get(), kMaxHeapKib);
  }

  // Returns the end of the match that begins at `from`, or kNoMatch.
  size_t match_at(size_t from) {
    size_t window = kFirstWindow;
    uint32_t steps = kFirstSteps;
    while (true) {
      const int found = attempt(from, window, steps);
      if (found >= 0) return pcre2_get_ovector_pointer(match_.get())[1];
      if (found == PCRE2_ERROR_NOMATCH) return kNoMatch;
      charge();
      if (found == PCRE2_ERROR_PARTIAL) {
        if (window == kMaxWindow) fail(fmt::format("looks at more than {} KiB at once", kMaxWindow >> 10));
        window *= 2;
        steps = std::min(steps, most_steps(window));
      } else if (found == PCRE2_ERROR_MATCHLIMIT && steps < most_steps(window)) {
        steps = std::min(4 * steps, most_steps(window));
      } else {
        HADAL_CHECK(found == PCRE2_ERROR_MATCHLIMIT || found == PCRE2_ERROR_DEPTHLIMIT ||
                        found == PCRE2_ERROR_HEAPLIMIT || found == PCRE2_ERROR_JIT_STACKLIMIT,
                    "tokenizer.json: matching \"{}\" failed with PCRE2 error {}", pattern_, found);
        fail(fmt::format("takes more than {} steps", steps));
      }
    }
  }

  // The clock runs only while patterns are matched, not while the pieces are processed.
  void start_clock() { since_ = thread_time(); }
  void charge() {
    const auto now = thread_time();
    if (!budget_.take(now - since_)) fail("takes more than 0.05 s and 1 µs for each byte");
    since_ = now;
  }

 private:
  static uint32_t most_steps(size_t window) { return static_cast<uint32_t>(kMaxStepBytes / window); }

  int attempt(size_t from, size_t window, uint32_t steps) {
    size_t end = text_.size();
    if (end - from > window) {
      end = from + window;
      while (is_continuation(text_[end])) --end;
    }
    pcre2_set_match_limit(context_.get(), steps);
    const uint32_t options = PCRE2_NO_UTF_CHECK | (end == text_.size() ? 0 : PCRE2_PARTIAL_HARD);
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text_.data()), end, from, options, match_.get(),
                       context_.get());
  }

  [[noreturn]] void fail(std::string_view limit) const {
    size_t shown = std::min<size_t>(pattern_.size(), 100);
    while (shown < pattern_.size() && is_continuation(pattern_[shown])) --shown;
    throw PatternLimitError(
        fmt::format("the text cannot be tokenised: the pattern \"{}{}\" of tokenizer.json {}",
                    printable(pattern_.substr(0, shown)), shown < pattern_.size() ? "..." : "", limit));
  }

  const pcre2_code* const code_;
  const std::string_view pattern_;
  const std::string_view text_;
  SplitBudget& budget_;
  const MatchData match_{pcre2_match_data_create(1, nullptr)};
  const MatchContext context_{pcre2_match_context_create(nullptr)};
  const JitStack stack_{pcre2_jit_stack_create(size_t{32} << 10, kJitStackBytes, nullptr)};
  std::chrono::nanoseconds since_{0};
};

class Pcre2Splitter final : public Splitter {
 public:
  Pcre2Splitter(Code code, std::string pattern) : code_(std::move(code)), pattern_(std::move(pattern)) {}

  void split(std::string_view text, SplitBudget& budget, PieceSink sink) const override {
    Attempts attempts(code_.get(), pattern_, text, budget);
    std::array<std::string_view, 2 * kBatch> pieces;
    size_t done = 0;
    for (size_t from = 0; from < text.size();) {
      size_t num_pieces = 0;
      attempts.start_clock();
      for (size_t i = 0; i < kBatch && from < text.size(); ++i) {
        const size_t end = attempts.match_at(from);
        if (end != kNoMatch) {
          if (from > done) pieces[num_pieces++] = text.substr(done, from - done);
          if (end > from) pieces[num_pieces++] = text.substr(from, end - from);
          done = end;
        }
        if (end != kNoMatch && end > from) {
          from = end;
        } else {  // no match, or an empty one, which cuts as well
          do ++from;
          while (from < text.size() && is_continuation(text[from]));
        }
      }
      attempts.charge();
      for (size_t i = 0; i < num_pieces; ++i) sink(pieces[i]);
    }
    if (done < text.size()) sink(text.substr(done));
  }

 private:
  Code code_;
  std::string pattern_;
};

}  // namespace

Result<std::unique_ptr<Splitter>> make_pcre2_splitter(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes)
    return unsupported("tokenizer.json: a pattern has {} bytes; at most {} are supported", pattern.size(),
                       kMaxPatternBytes);
  const auto translated = translate(pattern);
  if (!translated.ok())
    return unsupported("tokenizer.json: the pattern \"{}\" is not supported: {}", pattern,
                       translated.status().message);
  const CompileContext context(pcre2_compile_context_create(nullptr));
  HADAL_CHECK(context != nullptr, "out of memory");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 100);
  int error = 0;
  size_t offset = 0;
  // The pattern is multi-line, because Ruby's ^ and $ always match at lines. It is anchored here, because JIT
  // has no such option at match time.
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C,
                          &error, &offset, context.get()));
  if (code == nullptr) {
    PCRE2_UCHAR text[128];
    pcre2_get_error_message(error, text, sizeof(text));
    return data_loss("tokenizer.json: \"{}\" is not a regular expression: {}", pattern,
                     reinterpret_cast<const char*>(text));
  }
  // Without JIT (a build or a kernel that forbids it) matching is interpreted, with the same result but
  // slower.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  return std::unique_ptr<Splitter>(std::make_unique<Pcre2Splitter>(std::move(code), std::string(pattern)));
}

}  // namespace hadal
