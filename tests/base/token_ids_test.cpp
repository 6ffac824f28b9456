#include "base/token_ids.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

namespace hadal {
namespace {

using ::testing::ElementsAre;

std::vector<int32_t> list_of(std::span<const int32_t> ids) {
  return {ids.begin(), ids.end()};
}

TEST(TokenIds, CopiesShareTheIds) {
  const TokenIds ids(std::vector<int32_t>{5, 6, 7});
  const TokenIds copy = ids;
  EXPECT_EQ(copy.data(), ids.data());
  EXPECT_THAT(list_of(copy), ElementsAre(5, 6, 7));
  EXPECT_EQ(copy.front(), 5);
  EXPECT_EQ(copy[2], 7);
  const TokenIds none;
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.begin(), none.end());
}

TEST(TokenIds, CopiesShareTheDistinctIdsInAscendingOrder) {
  const TokenIds ids{7, 0, 300, 7, 5, 300, 0};
  const TokenIds copy = ids;
  EXPECT_THAT(list_of(copy.distinct()), ElementsAre(0, 5, 7, 300));
  EXPECT_EQ(ids.distinct().data(), copy.distinct().data());
  EXPECT_TRUE(TokenIds().distinct().empty());
  EXPECT_TRUE(TokenIds(std::vector<int32_t>()).distinct().empty());
}

TEST(TokenSequence, GeneratedIdsAreItsOwnAndThePromptIsShared) {
  const TokenIds prompt{5, 6, 7};
  TokenSequence first(prompt);
  TokenSequence second(prompt);
  first.push_back(8);
  second.push_back(9);
  second.push_back(10);
  EXPECT_EQ(first.prompt().data(), second.prompt().data());
  EXPECT_THAT(list_of(first.generated()), ElementsAre(8));
  EXPECT_THAT(list_of(second.generated()), ElementsAre(9, 10));
  EXPECT_EQ(second.size(), 5U);
  EXPECT_EQ(second[1], 6);
  EXPECT_EQ(second[4], 10);
}

TEST(TokenSequence, ItsBeginningIsAViewOfThePromptOrACopy) {
  TokenSequence tokens(TokenIds{5, 6, 7});
  tokens.push_back(8);
  tokens.push_back(9);
  std::vector<int32_t> scratch{1, 1, 1, 1, 1, 1, 1};
  EXPECT_EQ(tokens.first(3, scratch).data(), tokens.prompt().data());
  EXPECT_EQ(scratch.size(), 7U) << "nothing is copied";
  EXPECT_THAT(list_of(tokens.first(2, scratch)), ElementsAre(5, 6));
  EXPECT_THAT(list_of(tokens.first(4, scratch)), ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(list_of(tokens.first(5, scratch)), ElementsAre(5, 6, 7, 8, 9));
  EXPECT_TRUE(tokens.first(0, scratch).empty());
}

}  // namespace
}  // namespace hadal
