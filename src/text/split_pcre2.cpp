// Executes any other pattern of a tokenizer file with PCRE2 and JIT. The reference's engine has Ruby's
// syntax: constructs with the same meaning in both are kept, `\s` is expanded (PCRE2 counts U+180E as white
// space, the reference does not), and constructs whose meaning differs are refused.
#include <memory>

#include "base/check.h"
#include "text/pcre2_handles.h"
#include "text/splitter.h"

namespace hadal {

namespace {

// The property White_Space in the notation of a class.
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
                 next == 'K') {
        return unsupported("\\{}{} has no equivalent here", next, in_class ? " inside a class" : "");
      } else {
        out += c;
        if (next != '\0') out += next;
      }
    } else if (in_class && ((c == '[') || (c == '&' && next == '&'))) {
      return unsupported("nested and intersected classes have no equivalent here");
    } else if (c == '(' && next == '?' && i + 2 < pattern.size() && pattern[i + 2] == 'm') {
      return unsupported("(?m) has another meaning here");
    } else {
      if (c == '[') {
        in_class = true;
        // The first "]" after "[" or "[^" is an ordinary character in PCRE2, an empty class in Ruby.
        if (next == ']' || (next == '^' && i + 2 < pattern.size() && pattern[i + 2] == ']'))
          return unsupported("an empty class has no equivalent here");
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

class Pcre2Splitter final : public Splitter {
 public:
  Pcre2Splitter(Code code, std::string pattern) : code_(std::move(code)), pattern_(std::move(pattern)) {}

  void split(std::string_view text, PieceSink sink) const override {
    const MatchData match(pcre2_match_data_create(1, nullptr));
    const MatchContext context(pcre2_match_context_create(nullptr));
    const JitStack stack(pcre2_jit_stack_create(size_t{32} << 10, size_t{16} << 20, nullptr));
    HADAL_CHECK(match && context && stack, "out of memory");
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const size_t* bounds = pcre2_get_ovector_pointer(match.get());
    size_t done = 0;
    for (size_t from = 0; from < text.size();) {
      const int found = pcre2_match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK, match.get(),
                                    context.get());
      if (found == PCRE2_ERROR_NOMATCH) break;
      HADAL_CHECK(found >= 0, "tokenizer.json: matching \"{}\" failed with PCRE2 error {}", pattern_, found);
      const size_t begin = bounds[0];
      const size_t end = bounds[1];
      if (begin > done) sink(text.substr(done, begin - done));
      if (end > begin) sink(text.substr(begin, end - begin));
      done = end;
      from = end;
      if (end == begin) {  // an empty match cuts, and the search continues after the next character
        do ++from;
        while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0U) == 0x80U);
      }
    }
    if (done < text.size()) sink(text.substr(done));
  }

 private:
  Code code_;
  std::string pattern_;
};

}  // namespace

Result<std::unique_ptr<Splitter>> make_pcre2_splitter(std::string_view pattern) {
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
  // Ruby's ^ and $ always match at lines.
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                          context.get()));
  if (code == nullptr) {
    PCRE2_UCHAR text[128];
    pcre2_get_error_message(error, text, sizeof(text));
    return data_loss("tokenizer.json: \"{}\" is not a regular expression: {}", pattern,
                     reinterpret_cast<const char*>(text));
  }
  // Without JIT (a build or a kernel that forbids it) matching is interpreted, with the same result but
  // slower.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return std::unique_ptr<Splitter>(std::make_unique<Pcre2Splitter>(std::move(code), std::string(pattern)));
}

}  // namespace hadal
