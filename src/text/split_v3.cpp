// DeepSeek V3's pre-tokenizer in one pass. Its three steps cut out, in this order,
//   numbers   \p{N}{1,3}
//   CJK       [一-龥぀-ゟ゠-ヿ]+
//   and, in what lies between these, the matches of six alternatives:
//     1  one ASCII punctuation character and the ASCII letters after it
//     2  letters and marks, with at most one other character before them (not a line break, letter,
//     punctuation, symbol) 3  punctuation and symbols, with at most one space before and all line breaks
//     after 4  white space up to the last line break in it 5  white space, without its last character if
//     something follows 6  white space
// Every alternative is decided by the class of a few characters, so one look at the first character selects
// the work.
#include "text/splitter.h"
#include "text/utf8.h"

namespace hadal {

namespace {

// A character's part in the six alternatives; exactly one of these each.
enum Kind : uint8_t {
  kOther,       // controls, format characters, unassigned: matched only as the character before letters
  kWordChar,    // \p{L} \p{M} but ASCII letters; a mark may also stand before letters, where it counts as one
                // of them
  kAscii,       // [A-Za-z]
  kPunct,       // \p{P} \p{S} but ASCII
  kAsciiPunct,  // all of ASCII's punctuation and symbols
  kBlank,       // \s but line breaks
  kBreak,       // \r \n
  kDigit,       // \p{N}: ends the stretch
  kCjk,         // the second step's class: ends the stretch
};

class V3Splitter final : public Splitter {
 public:
  explicit V3Splitter(const CodePointTable& classes) {
    kinds_ = classes;
    kinds_.map(kind_of);
    // A number stays a number wherever it stands: the first step has cut it out already.
    const auto assign_cjk = [&](uint32_t first, uint32_t last) {
      for (uint32_t c = first; c <= last; ++c)
        if (kinds_[c] != kDigit) kinds_.assign(c, c, kCjk);
    };
    assign_cjk(0x4E00, 0x9FA5);
    assign_cjk(0x3040, 0x30FF);
    kinds_.assign('\r', '\r', kBreak);
    kinds_.assign('\n', '\n', kBreak);
    for (uint32_t c = 0; c < 128; ++c) {
      if (kinds_[c] == kWordChar) kinds_.assign(c, c, kAscii);
      if (kinds_[c] == kPunct) kinds_.assign(c, c, kAsciiPunct);
      ascii_[c] = kinds_[c];
    }
  }

  void split(std::string_view text, PieceSink sink) const override {
    const char* at = text.data();
    const char* const end = at + text.size();
    while (at != end) {
      const Char first = peek(at, end);
      const char* next = at + first.num_bytes;
      if (first.kind == kDigit) {
        for (int digits = 1; digits < 3 && next != end; ++digits) {
          const Char c = peek(next, end);
          if (c.kind != kDigit) break;
          next += c.num_bytes;
        }
        sink(view(at, next));
        at = next;
      } else if (first.kind == kCjk) {
        next = skip(next, end, [](uint8_t kind) { return kind == kCjk; });
        sink(view(at, next));
        at = next;
      } else {
        at = split_stretch(at, end, sink);
      }
    }
  }

 private:
  struct Char {
    uint8_t kind;
    uint32_t num_bytes;  // 0 at the end
  };

  static uint8_t kind_of(uint8_t bits) {
    if ((bits & kNumber) != 0) return kDigit;
    if ((bits & kSpace) != 0) return kBlank;
    if ((bits & (kLetter | kMark)) != 0) return kWordChar;
    if ((bits & (kPunctuation | kSymbol)) != 0) return kPunct;
    return kOther;
  }

  static std::string_view view(const char* begin, const char* end) {
    return {begin, static_cast<size_t>(end - begin)};
  }

  Char peek(const char* at, const char* end) const {
    if (at == end) return {kDigit, 0};  // the end of the text ends a stretch, as a number does
    const auto byte = static_cast<unsigned char>(*at);
    if (byte < 128) return {ascii_[byte], 1};
    const DecodedChar c = decode_valid_utf8(at);
    return {kinds_[c.code_point], c.num_bytes};
  }

  template <typename Accept>
  const char* skip(const char* at, const char* end, Accept&& accept) const {
    while (at != end) {
      const Char c = peek(at, end);
      if (!accept(c.kind)) break;
      at += c.num_bytes;
    }
    return at;
  }
  static bool is_letter(uint8_t kind) { return kind == kWordChar || kind == kAscii; }
  static bool is_punct(uint8_t kind) { return kind == kPunct || kind == kAsciiPunct; }
  static bool is_blank(uint8_t kind) { return kind == kBlank || kind == kBreak; }
  static bool ends_stretch(uint8_t kind) { return kind == kDigit || kind == kCjk; }
  const char* skip_letters(const char* at, const char* end) const { return skip(at, end, is_letter); }

  // Cuts from `at` up to the next number or CJK character and returns where that is.
  const char* split_stretch(const char* at, const char* end, PieceSink sink) const {
    const char* gap = at;  // characters from here to `at` match nothing so far
    const auto match = [&](const char* stop) {
      if (gap != at) sink(view(gap, at));
      sink(view(at, stop));
      gap = at = stop;
    };
    while (true) {
      const Char first = peek(at, end);
      if (ends_stretch(first.kind)) {
        if (gap != at) sink(view(gap, at));
        return at;
      }
      const char* const next = at + first.num_bytes;
      if (is_letter(first.kind)) {
        match(skip_letters(next, end));  // 2
        continue;
      }
      const Char second = peek(next, end);
      if (first.kind == kAsciiPunct && second.kind == kAscii) {
        match(skip(next, end, [](uint8_t kind) { return kind == kAscii; }));  // 1
      } else if ((first.kind == kBlank || first.kind == kOther) && is_letter(second.kind)) {
        match(skip_letters(next, end));  // 2
      } else if (is_punct(first.kind) || (*at == ' ' && is_punct(second.kind))) {
        const char* const stop = skip(next, end, is_punct);  // 3
        match(skip(stop, end, [](uint8_t kind) { return kind == kBreak; }));
      } else if (is_blank(first.kind)) {
        match(end_of_white_space(at, end));
      } else {
        at = next;
      }
    }
  }

  // Alternatives 4 to 6: where the match at the white space `at` ends.
  const char* end_of_white_space(const char* at, const char* end) const {
    const char* after_break = nullptr;
    const char* last = at;  // the last white space character so far
    const char* stop = at;
    Char c = peek(stop, end);
    for (; is_blank(c.kind); c = peek(stop, end)) {
      last = stop;
      stop += c.num_bytes;
      if (c.kind == kBreak) after_break = stop;
    }
    if (after_break != nullptr) return after_break;           // 4
    return ends_stretch(c.kind) || last == at ? stop : last;  // 5, 6
  }

  CodePointTable kinds_;
  uint8_t ascii_[128];
};

constexpr std::string_view kV3Patterns[] = {
    R"(\p{N}{1,3})",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
    "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
};

}  // namespace

std::unique_ptr<Splitter> make_v3_splitter(const CodePointTable& classes) {
  return std::make_unique<V3Splitter>(classes);
}

std::string_view v3_pattern(int step) {
  return kV3Patterns[step];
}

}  // namespace hadal
