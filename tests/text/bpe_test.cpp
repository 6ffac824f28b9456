#include "text/tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace hadal {
namespace {

using Merges = std::vector<std::pair<std::pair<int32_t, int32_t>, int32_t>>;

// Makes random merges over the letters a to d: token i + 4 joins two earlier tokens.
struct RandomVocabulary {
  std::vector<std::optional<std::string>> tokens = {"a", "b", "c", "d"};
  Merges merges;
  explicit RandomVocabulary(uint32_t seed) {
    std::mt19937 rng(seed);
    std::map<std::string, int32_t> ids = {{"a", 0}, {"b", 1}, {"c", 2}, {"d", 3}};
    while (tokens.size() < 60) {
      const auto left = static_cast<int32_t>(rng() % tokens.size());
      const auto right = static_cast<int32_t>(rng() % tokens.size());
      const std::string text = *tokens[left] + *tokens[right];
      const bool known_pair = std::any_of(merges.begin(), merges.end(),
                                          [&](const auto& m) { return m.first == std::pair(left, right); });
      if (text.size() > 12 || known_pair) continue;
      const auto [at, is_new] = ids.try_emplace(text, static_cast<int32_t>(tokens.size()));
      if (is_new) tokens.push_back(text);
      merges.push_back({{left, right}, at->second});
    }
    std::shuffle(merges.begin(), merges.end(), rng);
  }
};

// Applies the definition step by step: the pair of lowest rank, and among equals the leftmost, until none is
// left.
std::vector<int32_t> merge_by_definition(const RandomVocabulary& vocabulary, const std::string& word) {
  std::vector<int32_t> ids;
  for (const char c : word) ids.push_back(c - 'a');
  while (true) {
    size_t best_rank = vocabulary.merges.size();
    size_t best_at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i)
      for (size_t rank = 0; rank < best_rank; ++rank)
        if (vocabulary.merges[rank].first == std::pair(ids[i], ids[i + 1])) {
          best_rank = rank;
          best_at = i;
        }
    if (best_rank == vocabulary.merges.size()) return ids;
    ids[best_at] = vocabulary.merges[best_rank].second;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

TEST(Bpe, MergesByRankThenFromTheLeftInShortAndLongWords) {
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    const RandomVocabulary vocabulary(seed);
    const Bpe bpe(vocabulary.tokens, vocabulary.merges, false);
    std::mt19937 rng(seed);
    for (int i = 0; i < 300; ++i) {
      std::string word;
      const size_t size = 1 + rng() % (i % 3 == 0 ? 150 : 42);  // on both sides of the limit for short words
      const uint32_t letters = 1 + rng() % 4;
      for (size_t k = 0; k < size; ++k) word += static_cast<char>('a' + rng() % letters);
      const auto expected = merge_by_definition(vocabulary, word);
      std::vector<int32_t> ids;
      bpe.encode(word, ids);
      ASSERT_EQ(ids, expected) << "seed " << seed << ": " << word;
      ids.clear();
      bpe.encode(word, ids);  // the memo is filled now
      ASSERT_EQ(ids, expected) << "seed " << seed << ": " << word;
    }
  }
}

TEST(Bpe, ATokenThatItsMergesDoNotProduceIsNotUsed) {
  const std::vector<std::optional<std::string>> tokens = {"a", "b", "ab", "aba"};
  const Merges merges = {{{0, 1}, 2}};
  for (int repeat = 0; repeat < 2; ++repeat) {
    std::vector<int32_t> ids;
    Bpe(tokens, merges, false).encode("aba", ids);
    EXPECT_EQ(ids, (std::vector<int32_t>{2, 0}));
    ids.clear();
    Bpe(tokens, merges, true).encode("aba", ids);
    EXPECT_EQ(ids, std::vector<int32_t>{3});
  }
}

TEST(Bpe, OneMegabyteWithoutASpaceIsOneWord) {
  const std::vector<std::optional<std::string>> tokens = {"a", "aa", "aaaa", "b"};
  const Bpe bpe(tokens, {{{0, 0}, 1}, {{1, 1}, 2}}, false);
  const std::string word(1 << 20, 'a');
  std::vector<int32_t> ids;
  bpe.encode(word + "b", ids);
  ASSERT_EQ(ids.size(), (size_t{1} << 18) + 1);
  EXPECT_TRUE(std::all_of(ids.begin(), ids.end() - 1, [](int32_t id) { return id == 2; }));
  EXPECT_EQ(ids.back(), 3);
}

TEST(Bpe, DropsBytesWithoutAToken) {
  const Bpe bpe({"a"}, {}, false);
  std::vector<int32_t> ids;
  bpe.encode("xax", ids);
  EXPECT_EQ(ids, std::vector<int32_t>{0});
  bpe.encode(std::string(100, 'x'), ids);
  EXPECT_EQ(ids.size(), 1U);
}

}  // namespace
}  // namespace hadal
