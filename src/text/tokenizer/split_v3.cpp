// Executes DeepSeek V3's pre-tokenizer in one pass. Its three steps cut out, in this order,
//   numbers   \p{N}{1,3}
//   CJK       [一-龥぀-ゟ゠-ヿ]+
// and then, in the remaining pieces, the matches of six alternatives:
//   1. one ASCII punctuation character and the ASCII letters after it
//   2. letters and marks, after at most one character that is not a line break, punctuation or symbol
//   3. punctuation and symbols, after at most one space and with all line breaks that follow
//   4. white space up to its last line break
//   5. white space, without its last character if something follows
//   6. white space
// The class of one or two characters decides which alternative matches, so no backtracking is needed.
#include "text/tokenizer/splitter.h"
#include "text/utf8.h"

namespace hadal {

namespace {

// CharKind is a character's role in the six alternatives; each character has exactly one.
enum CharKind : uint8_t {
  kOther,       // controls, format characters, unassigned: matched only as the character before letters
  kWordChar,    // \p{L} \p{M} but ASCII letters
  kAscii,       // [A-Za-z]
  kPunct,       // \p{P} \p{S} but ASCII
  kAsciiPunct,  // all of ASCII's punctuation and symbols
  kBlank,       // \s but line breaks
  kBreak,       // \r \n
  kDigit,       // \p{N}: ends the stretch
  kCjk,         // the second step's class, letters and marks: ends the stretch
  kCjkOther,    // the rest of that class: punctuation, symbols, unassigned
};

bool is_letter_or_mark(uint8_t kind) {
  return kind == kWordChar || kind == kAscii;
}
bool is_punct(uint8_t kind) {
  return kind == kPunct || kind == kAsciiPunct;
}
bool is_blank(uint8_t kind) {
  return kind == kBlank || kind == kBreak;
}
bool ends_stretch(uint8_t kind) {
  return kind == kDigit || kind == kCjk || kind == kCjkOther;
}

struct Char {
  uint8_t kind;
  uint32_t num_bytes;  // 0 at the end
};

// Holds the kind of every character.
struct Kinds {
  CodePointTable table;
  uint8_t ascii[128];

  Char peek(const char* at, const char* end) const {
    if (at == end) return {kDigit, 0};  // the end of the text ends a stretch, like a number
    const auto byte = static_cast<unsigned char>(*at);
    if (byte < 128) return {ascii[byte], 1};
    const DecodedChar c = decode_valid_utf8(at);
    return {table[c.code_point], c.num_bytes};
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
};

class V3Splitter final : public Splitter {
 public:
  explicit V3Splitter(const CodePointTable& classes) {
    plain_.table = classes;
    plain_.table.map(kind_of);
    plain_.table.assign('\r', '\r', kBreak);
    plain_.table.assign('\n', '\n', kBreak);
    for (uint32_t c = 0; c < 128; ++c) {
      if (plain_.table[c] == kWordChar) plain_.table.assign(c, c, kAscii);
      if (plain_.table[c] == kPunct) plain_.table.assign(c, c, kAsciiPunct);
      plain_.ascii[c] = plain_.table[c];
    }
    cutting_ = plain_;
    for (const auto& [first, last] : {std::pair(0x4E00U, 0x9FA5U), {0x3040U, 0x30FFU}})
      for (uint32_t c = first; c <= last; ++c) {
        const uint8_t kind = plain_.table[c];
        if (kind != kDigit) cutting_.table.assign(c, c, is_letter_or_mark(kind) ? kCjk : kCjkOther);
      }
  }

  void split(std::string_view text, SplitBudget& /*linear*/, PieceSink sink) const override {
    const char* at = text.data();
    const char* const end = at + text.size();
    while (at != end) {
      const Char first = cutting_.peek(at, end);
      const char* next = at + first.num_bytes;
      if (first.kind == kDigit) {
        for (int digits = 1; digits < 3 && next != end; ++digits) {
          const Char c = cutting_.peek(next, end);
          if (c.kind != kDigit) break;
          next += c.num_bytes;
        }
        sink(std::string_view(at, next));
      } else if (first.kind == kCjk || first.kind == kCjkOther) {
        const auto is_cjk_letter = [](uint8_t kind) { return kind == kCjk; };
        const char* const letters_end = cutting_.skip(at, end, is_cjk_letter);
        next =
            cutting_.skip(letters_end, end, [](uint8_t kind) { return kind == kCjk || kind == kCjkOther; });
        // The third step processes this piece too, and cuts it at punctuation and the like.
        if (letters_end == next)
          sink(std::string_view(at, next));
        else
          split_stretch(plain_, at, next, sink);
      } else {
        next = split_stretch(cutting_, at, end, sink);
      }
      at = next;
    }
  }

 private:
  static uint8_t kind_of(uint8_t bits) {
    if ((bits & kNumber) != 0) return kDigit;
    if ((bits & kSpace) != 0) return kBlank;
    if ((bits & (kLetter | kMark)) != 0) return kWordChar;
    if ((bits & (kPunctuation | kSymbol)) != 0) return kPunct;
    return kOther;
  }

  // Cuts the text up to the next number or CJK character by the six alternatives, and returns that
  // character's position.
  static const char* split_stretch(const Kinds& kinds, const char* at, const char* end, PieceSink sink) {
    const char* gap = at;  // characters from here to `at` match nothing so far
    const auto match = [&](const char* stop) {
      if (gap != at) sink(std::string_view(gap, at));
      sink(std::string_view(at, stop));
      gap = at = stop;
    };
    while (true) {
      const Char first = kinds.peek(at, end);
      if (ends_stretch(first.kind)) {
        if (gap != at) sink(std::string_view(gap, at));
        return at;
      }
      const char* const next = at + first.num_bytes;
      if (is_letter_or_mark(first.kind)) {
        match(kinds.skip(next, end, is_letter_or_mark));  // 2
        continue;
      }
      const Char second = kinds.peek(next, end);
      if (first.kind == kAsciiPunct && second.kind == kAscii) {
        match(kinds.skip(next, end, [](uint8_t kind) { return kind == kAscii; }));  // 1
      } else if ((first.kind == kBlank || first.kind == kOther) && is_letter_or_mark(second.kind)) {
        match(kinds.skip(next, end, is_letter_or_mark));  // 2
      } else if (is_punct(first.kind) || (*at == ' ' && is_punct(second.kind))) {
        const char* const stop = kinds.skip(next, end, is_punct);  // 3
        match(kinds.skip(stop, end, [](uint8_t kind) { return kind == kBreak; }));
      } else if (is_blank(first.kind)) {
        match(end_of_white_space(kinds, at, end));
      } else {
        at = next;
      }
    }
  }

  // Tries alternatives 4 to 6 and returns the end of the match at the white space `at`.
  static const char* end_of_white_space(const Kinds& kinds, const char* at, const char* end) {
    const char* after_break = nullptr;
    const char* last = at;  // the last white space character so far
    const char* stop = at;
    Char c = kinds.peek(stop, end);
    for (; is_blank(c.kind); c = kinds.peek(stop, end)) {
      last = stop;
      stop += c.num_bytes;
      if (c.kind == kBreak) after_break = stop;
    }
    if (after_break != nullptr) return after_break;           // 4
    return ends_stretch(c.kind) || last == at ? stop : last;  // 5, 6
  }

  Kinds plain_;    // as the third step sees characters
  Kinds cutting_;  // the same with the second step's class marked
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
