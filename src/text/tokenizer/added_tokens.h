// Finds added tokens ("<｜User｜>", "<think>", …) in text before any other step: the leftmost first, and the
// longest of those that begin at the same place. The matcher is immutable after build.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer/tokenizer_file.h"
#include "text/tokenizer/unicode_classes.h"

namespace hadal {

class AddedTokenMatcher {
 public:
  // `classes` must outlive the matcher.
  AddedTokenMatcher(const std::vector<AddedTokenSpec>& tokens, const CodePointTable& classes);

  struct Piece {
    std::string_view text;
    int32_t id;  // id of an added token, or -1: ordinary text
  };

  // Appends the pieces of `text` (valid UTF-8) in order; none of them is empty text. Tokens that are matched
  // in the unchanged text (usually special ones) take precedence over those that the file marks "normalized".
  void split(std::string_view text, std::vector<Piece>& out) const;

 private:
  struct Rule {
    int32_t id;
    bool single_word;
    bool lstrip;
    bool rstrip;
  };
  // Node is one node of a trie over bytes, which keeps its few children sorted.
  struct Node {
    int32_t rule = -1;
    std::vector<std::pair<unsigned char, uint32_t>> children;
  };
  struct Trie {
    std::vector<Node> nodes;  // empty: matches nothing
    std::array<bool, 256> starts{};
    int only_start = -1;  // the first byte of all tokens, if they share one
    void insert(std::string_view key, int32_t rule);
  };

  void split_by(const Trie& trie, std::string_view text, std::vector<Piece>& out) const;
  bool is_word(uint32_t code_point) const { return (classes_[code_point] & kWord) != 0; }

  const CodePointTable& classes_;
  std::vector<Rule> rules_;
  Trie raw_;
  Trie normalized_;
};

}  // namespace hadal
