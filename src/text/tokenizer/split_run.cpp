// Executes patterns of the form "[class]", "[class]+", "[class]{m,n}", each with an optional "\s?" or " ?"
// before it, and "\s+$", with one pass over the text and a table of code points instead of a regex engine.
// The ids are the same by construction (tests/text compares them with PCRE2's). The Unicode version is that
// of our tables, and the time is linear for every text.
#include <algorithm>
#include <limits>
#include <optional>

#include "text/tokenizer/splitter.h"
#include "text/utf8.h"

namespace hadal {

namespace {

constexpr uint32_t kUnbounded = std::numeric_limits<uint32_t>::max();

// RunSplitter matches `least` to `most` characters of a class, perhaps preceded by one character of another
// class.
class RunSplitter final : public Splitter {
 public:
  enum : uint8_t { kMember = 1, kPrefix = 2 };

  RunSplitter(CodePointTable table, bool has_prefix, uint32_t least, uint32_t most)
      : table_(std::move(table)), has_prefix_(has_prefix), least_(least), most_(most) {
    for (uint32_t c = 0; c < 128; ++c) ascii_[c] = table_[c];
  }

  void split(std::string_view text, SplitBudget& /*linear*/, PieceSink sink) const override {
    const char* at = text.data();
    const char* const end = at + text.size();
    const char* gap = at;
    while (at != end) {
      const Char first = peek(at);
      if (first.bits == 0) {
        at += first.num_bytes;
        continue;
      }
      // The match is greedy: it tries with the prefix first, then without.
      const char* stop = nullptr;
      if (has_prefix_ && (first.bits & kPrefix) != 0) stop = match_run(at + first.num_bytes, end);
      if (stop == nullptr) stop = match_run(at, end);
      if (stop == nullptr) {
        at += first.num_bytes;
        continue;
      }
      if (gap != at) sink(std::string_view(gap, at));
      sink(std::string_view(at, stop));
      gap = at = stop;
    }
    if (gap != end) sink(std::string_view(gap, end));
  }

 private:
  struct Char {
    uint8_t bits;
    uint32_t num_bytes;
  };
  Char peek(const char* at) const {
    const auto byte = static_cast<unsigned char>(*at);
    if (byte < 128) return {ascii_[byte], 1};
    const DecodedChar c = decode_valid_utf8(at);
    return {table_[c.code_point], c.num_bytes};
  }
  const char* match_run(const char* at, const char* end) const {
    uint32_t count = 0;
    while (at != end && count < most_) {
      const Char c = peek(at);
      if ((c.bits & kMember) == 0) break;
      at += c.num_bytes;
      ++count;
    }
    return count >= least_ ? at : nullptr;
  }

  CodePointTable table_;
  uint8_t ascii_[128];
  bool has_prefix_;
  uint32_t least_;
  uint32_t most_;
};

// TrailingSpaceSplitter executes "\s+$": white space before a line feed or the end of the text. `$` also
// matches before a line feed. So if other text follows the white space, the part before the last line feed
// matches.
class TrailingSpaceSplitter final : public Splitter {
 public:
  explicit TrailingSpaceSplitter(const CodePointTable& classes) : classes_(classes) {}

  void split(std::string_view text, SplitBudget& /*linear*/, PieceSink sink) const override {
    const char* at = text.data();
    const char* const end = at + text.size();
    const char* gap = at;
    while (at != end) {
      DecodedChar c = decode_valid_utf8(at);
      if ((classes_[c.code_point] & kSpace) == 0) {
        at += c.num_bytes;
        continue;
      }
      const char* const begin = at;
      const char* stop = nullptr;  // the last place in the run where `$` holds
      while (true) {
        if (at == end) {
          stop = at;
          break;
        }
        c = decode_valid_utf8(at);
        if (c.code_point == '\n' && at != begin) stop = at;
        if ((classes_[c.code_point] & kSpace) == 0) break;
        at += c.num_bytes;
      }
      if (stop == nullptr) continue;
      if (gap != begin) sink(std::string_view(gap, begin));
      sink(std::string_view(begin, stop));
      gap = at = stop;
    }
    if (gap != end) sink(std::string_view(gap, end));
  }

 private:
  const CodePointTable& classes_;
};

// PatternReader reads the few forms of patterns above. It fails on any other pattern, which PCRE2 then
// executes.
class PatternReader {
 public:
  PatternReader(std::string_view pattern, const CodePointTable& classes)
      : rest_(pattern), classes_(classes) {}

  std::unique_ptr<Splitter> read() {
    if (rest_ == R"(\s+$)") return std::make_unique<TrailingSpaceSplitter>(classes_);
    CodePointTable table;
    bool has_prefix = false;
    for (const std::string_view prefix : {R"(\s?)", " ?"}) {
      if (!take(prefix)) continue;
      has_prefix = true;
      break;
    }
    std::vector<uint8_t> member(0x110000, 0);
    if (!read_class(member)) return nullptr;
    uint32_t least = 1;
    uint32_t most = 1;
    if (!read_repeat(least, most) || !rest_.empty() || least == 0) return nullptr;
    const bool any_space = has_prefix && prefix_is_class_;
    for (uint32_t c = 0; c < member.size(); ++c) {
      const bool prefix = has_prefix && (any_space ? (classes_[c] & kSpace) != 0 : c == ' ');
      const uint8_t bits = (member[c] != 0 ? RunSplitter::kMember : 0) | (prefix ? RunSplitter::kPrefix : 0);
      if (bits != 0) table.assign(c, c, bits);
    }
    return std::make_unique<RunSplitter>(std::move(table), has_prefix, least, most);
  }

 private:
  bool take(std::string_view text) {
    if (rest_.substr(0, text.size()) != text) return false;
    rest_.remove_prefix(text.size());
    prefix_is_class_ = text[0] == '\\';
    return true;
  }
  uint32_t next_char() {
    const DecodedChar c = decode_valid_utf8(rest_.data());
    rest_.remove_prefix(c.num_bytes);
    return c.code_point;
  }

  // Reads "\p{L}" and the like, after the backslash; returns 0 for anything else.
  uint8_t read_property() {
    static constexpr std::pair<std::string_view, uint8_t> kProperties[] = {
        {"p{L}", kLetter},      {"p{M}", kMark},   {"p{N}", kNumber},
        {"p{P}", kPunctuation}, {"p{S}", kSymbol}, {"s", kSpace}};
    for (const auto& [text, bits] : kProperties) {
      if (rest_.substr(0, text.size()) != text) continue;
      rest_.remove_prefix(text.size());
      return bits;
    }
    return 0;
  }
  void add_property(uint8_t bits, std::vector<uint8_t>& member) const {
    for (uint32_t c = 0; c < member.size(); ++c)
      if ((classes_[c] & bits) != 0) member[c] = 1;
  }
  // Reads one character of a class, which stands as itself or escaped.
  std::optional<uint32_t> read_class_char() {
    if (rest_.empty()) return std::nullopt;
    const uint32_t c = next_char();
    if (c == '[' || c == '&' || c == ']' || c == '^')
      return std::nullopt;  // nested sets and the like are left to PCRE2
    if (c != '\\') return c;
    if (rest_.empty()) return std::nullopt;
    const uint32_t escaped = next_char();
    if (escaped == 'r') return '\r';
    if (escaped == 'n') return '\n';
    if (escaped == 't') return '\t';
    const bool is_punctuation = escaped < 128 && (classes_[escaped] & (kPunctuation | kSymbol)) != 0;
    return is_punctuation ? std::optional(escaped) : std::nullopt;
  }

  bool read_class(std::vector<uint8_t>& member) {
    if (rest_.empty()) return false;
    const char first = rest_.front();
    rest_.remove_prefix(1);
    if (first == '\\') {
      const uint8_t bits = read_property();
      add_property(bits, member);
      return bits != 0;
    }
    if (first != '[') return false;
    const bool is_empty = !rest_.empty() && rest_.front() == ']';
    while (!rest_.empty() && rest_.front() != ']') {
      if (rest_.front() == '\\') {
        const std::string_view before = rest_;
        rest_.remove_prefix(1);
        if (const uint8_t bits = read_property(); bits != 0) {
          if (!rest_.empty() && rest_.front() == '-') return false;
          add_property(bits, member);
          continue;
        }
        rest_ = before;
      }
      const auto low = read_class_char();
      if (!low) return false;
      auto high = low;
      if (rest_.size() > 1 && rest_.front() == '-' && rest_[1] != ']') {
        rest_.remove_prefix(1);
        high = read_class_char();
        if (!high || *high < *low) return false;
      }
      std::fill(member.begin() + *low, member.begin() + *high + 1, uint8_t{1});
    }
    if (rest_.empty() || is_empty) return false;
    rest_.remove_prefix(1);
    return true;
  }

  // Reads a quantifier: "+" or "{m,n}", or nothing.
  bool read_repeat(uint32_t& least, uint32_t& most) {
    if (rest_.empty()) return true;
    if (rest_ == "+") {
      rest_ = {};
      most = kUnbounded;
      return true;
    }
    if (rest_.size() != 5 || rest_[0] != '{' || rest_[2] != ',' || rest_[4] != '}') return false;
    const auto digit = [&](size_t i) { return static_cast<uint32_t>(rest_[i] - '0'); };
    if (digit(1) > 9 || digit(3) > 9 || digit(1) > digit(3)) return false;
    least = digit(1);
    most = digit(3);
    rest_ = {};
    return true;
  }

  std::string_view rest_;
  const CodePointTable& classes_;
  bool prefix_is_class_ = false;
};

uint8_t numeric_member(uint8_t bits) {
  return (bits & kNumeric) != 0 ? RunSplitter::kMember : 0;
}

}  // namespace

std::unique_ptr<Splitter> make_run_splitter(std::string_view pattern, const CodePointTable& classes) {
  return PatternReader(pattern, classes).read();
}

std::unique_ptr<Splitter> make_digits_splitter(bool individual, const CodePointTable& classes) {
  CodePointTable table = classes;
  table.map(numeric_member);
  return std::make_unique<RunSplitter>(std::move(table), false, 1, individual ? 1 : kUnbounded);
}

}  // namespace hadal
