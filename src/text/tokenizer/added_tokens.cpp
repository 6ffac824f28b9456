#include "text/tokenizer/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "text/utf8.h"

namespace hadal {

void AddedTokenMatcher::Trie::insert(std::string_view key, int32_t rule) {
  if (nodes.empty()) nodes.emplace_back();
  const auto first = static_cast<unsigned char>(key[0]);
  only_start = nodes[0].children.empty() || only_start == first ? first : -1;
  starts[first] = true;
  uint32_t at = 0;
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    auto& children = nodes[at].children;
    auto place = std::lower_bound(children.begin(), children.end(), std::pair(byte, uint32_t{0}));
    if (place == children.end() || place->first != byte) {
      place = children.insert(place, {byte, static_cast<uint32_t>(nodes.size())});
      at = place->second;
      nodes.emplace_back();
    } else {
      at = place->second;
    }
  }
  nodes[at].rule = rule;
}

AddedTokenMatcher::AddedTokenMatcher(const std::vector<AddedTokenSpec>& tokens, const CodePointTable& classes)
    : classes_(classes) {
  for (const AddedTokenSpec& token : tokens) {
    rules_.push_back({token.id, token.single_word, token.lstrip, token.rstrip});
    (token.normalized ? normalized_ : raw_).insert(token.content, static_cast<int32_t>(rules_.size()) - 1);
  }
}

void AddedTokenMatcher::split(std::string_view text, std::vector<Piece>& out) const {
  if (normalized_.nodes.empty()) return split_by(raw_, text, out);
  std::vector<Piece> pieces;
  split_by(raw_, text, pieces);
  for (const Piece& piece : pieces) {
    if (piece.id >= 0)
      out.push_back(piece);
    else
      split_by(normalized_, piece.text, out);
  }
}

void AddedTokenMatcher::split_by(const Trie& trie, std::string_view text, std::vector<Piece>& out) const {
  size_t done = 0;  // everything before it is in `out`
  const auto add_text = [&](size_t end) {
    if (end > done) out.push_back({text.substr(done, end - done), -1});
  };
  for (size_t at = 0; !trie.nodes.empty() && at < text.size();) {
    // Skip to the next byte with which a token begins.
    if (trie.only_start >= 0) {
      const void* found = std::memchr(text.data() + at, trie.only_start, text.size() - at);
      if (found == nullptr) break;
      at = static_cast<size_t>(static_cast<const char*>(found) - text.data());
    } else {
      while (at < text.size() && !trie.starts[static_cast<unsigned char>(text[at])]) ++at;
    }
    int32_t rule_idx = -1;
    size_t end = at;
    uint32_t node = 0;
    for (size_t i = at; i < text.size(); ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      const auto& children = trie.nodes[node].children;
      const auto place = std::lower_bound(children.begin(), children.end(), std::pair(byte, uint32_t{0}));
      if (place == children.end() || place->first != byte) break;
      node = place->second;
      if (trie.nodes[node].rule >= 0) {
        rule_idx = trie.nodes[node].rule;
        end = i + 1;
      }
    }
    if (rule_idx < 0) {
      ++at;
      continue;
    }
    const Rule& rule = rules_[static_cast<size_t>(rule_idx)];
    size_t begin = at;
    at = end;
    if (rule.single_word) {
      const char* before = begin == 0 ? nullptr : previous_valid_utf8(text.data() + begin);
      const bool joined_left = before != nullptr && is_word(decode_valid_utf8(before).code_point);
      const bool joined_right = end < text.size() && is_word(decode_valid_utf8(text.data() + end).code_point);
      if (joined_left || joined_right) continue;
    }
    if (rule.lstrip) {
      while (begin > done) {
        const char* before = previous_valid_utf8(text.data() + begin);
        if ((classes_[decode_valid_utf8(before).code_point] & kSpace) == 0) break;
        begin = static_cast<size_t>(before - text.data());
      }
    }
    if (rule.rstrip) {
      while (end < text.size()) {
        const DecodedChar c = decode_valid_utf8(text.data() + end);
        if ((classes_[c.code_point] & kSpace) == 0) break;
        end += c.num_bytes;
      }
      at = end;
    }
    add_text(begin);
    out.push_back({text.substr(begin, end - begin), rule.id});
    done = end;
  }
  add_text(text.size());
}

}  // namespace hadal
