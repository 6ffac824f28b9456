// Tests the comparison of prompts page by page, and that requests with the same ids share it.
#include "scheduler/prompt_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace hadal {
namespace {

std::vector<int32_t> numbers(int64_t count, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) tokens[i] = first + static_cast<int32_t>(i);
  return tokens;
}

TEST(PromptPages, CommonPagesAreThoseBeforeTheFirstDifference) {
  std::mt19937 rng(5);
  const std::vector<int32_t> a = numbers(1000);  // 15 whole pages
  for (int round = 0; round < 200; ++round) {
    std::vector<int32_t> b = numbers(static_cast<int64_t>(1 + rng() % 1200));
    const size_t at = rng() % b.size();
    if (round % 4 != 0) b[at] = -1;
    const auto equal = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
    const int64_t most = static_cast<int64_t>(rng() % 16);
    const int64_t least = static_cast<int64_t>(rng() % 16);
    const int64_t common = std::min<int64_t>(equal / kCachePageSize, most);
    EXPECT_EQ(PromptPages(a).common_pages(PromptPages(b), least, most), common > least ? common : 0)
        << "round " << round << ": " << b.size() << " tokens, " << equal << " equal, least " << least
        << ", most " << most;
  }
}

TEST(PromptPages, APageThatDiffersInOneTokenDiffers) {
  const std::vector<int32_t> a = numbers(64);
  for (size_t at = 0; at < a.size(); ++at) {
    std::vector<int32_t> b = a;
    b[at] ^= 1 << (at % 31);
    EXPECT_EQ(PromptPages(a).common_pages(PromptPages(b), 0, 1), 0) << at;
  }
}

TEST(PromptPages, EqualPagesAfterDifferentOnesAreNotCommon) {
  std::vector<int32_t> b = numbers(640);
  b[70] = -1;
  EXPECT_EQ(PromptPages(numbers(640)).common_pages(PromptPages(b), 0, 10), 1);
}

TEST(PromptPages, APromptShorterThanAPageHasNone) {
  EXPECT_EQ(PromptPages(numbers(63)).num_pages(), 0);
  EXPECT_EQ(PromptPages(numbers(64)).num_pages(), 1);
  EXPECT_EQ(PromptPages(numbers(63)).common_pages(PromptPages(numbers(64)), 0, 0), 0);
}

TEST(PromptTable, ChoicesOfAPromptShareItsPagesUntilTheLastOneLeaves) {
  PromptTable table;
  const TokenIds prompt = numbers(200);
  const TokenIds choice = prompt;       // the same ids
  const TokenIds other = numbers(200);  // equal ids, but not the same
  PromptPages* pages = table.enter(prompt);
  EXPECT_EQ(table.enter(choice), pages);
  EXPECT_NE(table.enter(other), pages);
  EXPECT_EQ(table.num_prompts(), 2);
  EXPECT_EQ(table.num_requests(), 3);
  table.leave(prompt);
  EXPECT_EQ(table.num_prompts(), 2) << "a choice still uses it";
  table.leave(choice);
  EXPECT_EQ(table.num_prompts(), 1);
  table.leave(other);
  EXPECT_EQ(table.num_prompts(), 0);
}

}  // namespace
}  // namespace hadal
