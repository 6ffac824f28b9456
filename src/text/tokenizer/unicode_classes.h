// Holds the character classes of every code point as the reference library defines them (Unicode 16 for the
// regex classes). These are our own tables, because the Unicode version of a regex library differs between
// distributions, but the ids must not differ.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hadal {

enum UnicodeClass : uint8_t {
  kLetter = 1,       // \p{L}
  kMark = 2,         // \p{M}
  kNumber = 4,       // \p{N}
  kPunctuation = 8,  // \p{P}
  kSymbol = 16,      // \p{S}
  kSpace = 32,       // \s: White_Space
  kNumeric = 64,     // a digit for the Digits pre-tokenizer
  kWord = 128,       // \w of the single_word rule
};

// CodePointTable holds one byte per code point, in two levels: blocks of 256 code points, with all-zero
// blocks shared.
class CodePointTable {
 public:
  CodePointTable();  // all zero

  uint8_t operator[](uint32_t code_point) const {
    return blocks_[static_cast<size_t>(index_[code_point >> 8]) << 8 | (code_point & 0xFF)];
  }

  // Sets the value of every code point of [first, last].
  void assign(uint32_t first, uint32_t last, uint8_t value);
  // Replaces every value v by function(v), which keeps 0.
  void map(uint8_t (*function)(uint8_t));

 private:
  std::array<uint16_t, 0x1100> index_;  // block of each 256 code points; block 0 stays zero
  std::vector<uint8_t> blocks_;
};

// Makes the UnicodeClass bits of every code point. It takes about a millisecond; keep one and share it.
CodePointTable make_unicode_classes();

}  // namespace hadal
