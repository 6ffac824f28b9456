// Makes random stop expressions and texts, and cuts the texts into pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace hadal::testing {

class RandomPattern {
 public:
  explicit RandomPattern(uint32_t seed) : rng_(seed) {}

  size_t below(size_t n) { return rng_() % n; }

  std::string pattern() {
    static const std::vector<std::string> kFlags = {"",     "",     "",     "",       "(?i)",
                                                    "(?m)", "(?s)", "(?x)", "(?im-s)"};
    return one_of(kFlags) + alternatives(3);
  }

  std::string text() {
    static const std::vector<std::string> kCharacters = {"a", "a", "b",  "b", "A", "1",      " ", "\n",
                                                         "é", "É", "漢", "_", "k", "\u212a", "٣"};
    std::string out;
    for (size_t i = below(24); i > 0; --i) out += one_of(kCharacters);
    return out;
  }

 private:
  const std::string& one_of(const std::vector<std::string>& words) { return words[below(words.size())]; }

  std::string alternatives(int depth) {
    std::string out = sequence(depth);
    for (size_t i = below(4); i > 2; --i) out += "|" + sequence(depth);
    if (below(4) == 0) out += "|" + sequence(depth);
    return out;
  }

  std::string sequence(int depth) {
    std::string out;
    for (size_t i = below(depth > 2 ? 5 : 3); i > 0; --i) out += repeated(depth);
    return out;
  }

  std::string repeated(int depth) {
    static const std::vector<std::string> kPositions = {"^",   "$",    "\\b",   "\\B",  "\\A",   "\\z",
                                                        "\\Z", "(?i)", "(?#c)", "(?m)", "(?s-i)"};
    static const std::vector<std::string> kQuantifiers = {"*",     "+",    "?",   "{2}", "{1,3}",
                                                          "{0,2}", "{2,}", "{0}", "{0,}"};
    if (below(8) == 0) return one_of(kPositions);
    std::string out = atom(depth);
    if (below(5) < 2) {
      out += one_of(kQuantifiers);
      if (below(3) == 0) out += "?";
    }
    return out;
  }

  std::string atom(int depth) {
    static const std::vector<std::string> kAtoms = {
        "a",    "a",        "b",       "b",         "1",
        "k",    "é",        "漢",      ".",         "\\d",
        "\\w",  "\\s",      "\\D",     "\\W",       "\\S",
        "\\n",  "\\x61",    "\\x{e9}", "\\p{Lu}",   "\\PN",
        "[ab]", "[^a]",     "[a-k]",   "[^\\d\\s]", "[[:alpha:]_]",
        "[]a]", "[^]b\\]]", "\\N",     "\\h",       "\\v",
        "\\cJ", "\\0",      "\\141",   "{",         "]",
        "\\.",  "[é-ÿ]",    "[k]",     "\\N{U+61}", " ",
        "\\ ",  "\\o{141}"};
    static const std::vector<std::string> kGroups = {"(",    "(?:",  "(?:",   "(?<n>",
                                                     "(?i:", "(?s:", "(?-i:", "(?m:"};
    if (depth > 0 && below(3) == 0) return one_of(kGroups) + alternatives(depth - 1) + ")";
    return one_of(kAtoms);
  }

  std::mt19937 rng_;
};

// Cuts a text at random characters.
inline std::vector<std::string> cut(const std::string& text, RandomPattern& random) {
  std::vector<std::string> pieces = {""};
  for (size_t i = 0; i < text.size(); ++i) {
    const bool begins_character = (static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80U;
    if (begins_character && i > 0 && random.below(3) == 0) pieces.emplace_back();
    pieces.back() += text[i];
  }
  return pieces;
}

}  // namespace hadal::testing
