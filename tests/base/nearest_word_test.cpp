#include "base/nearest_word.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace hadal {
namespace {

TEST(EditDistance, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("abc", "abc"), 0);
  EXPECT_EQ(edit_distance("abc", "acb"), 1);
  EXPECT_EQ(edit_distance("abc", "axc"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(NearestWord, IsTheFirstOfTheNearestUnlessNoneIsNear) {
  const std::vector<std::string_view> words = {"temperature", "top-p", "top-k"};
  EXPECT_EQ(nearest_word("temprature", words), "temperature");
  EXPECT_EQ(nearest_word("top-x", words), "top-p");
  EXPECT_EQ(nearest_word("xyzzyxyzzy", words), "");
  EXPECT_EQ(nearest_word("", words), "");
  EXPECT_EQ(nearest_word("top-p", {}), "");
}

TEST(NearestWord, GivesUpOnVeryLongWords) {
  const std::string long_word(100, 'a');
  const std::vector<std::string_view> words = {long_word};
  EXPECT_EQ(nearest_word(long_word, words), long_word);
  EXPECT_EQ(nearest_word(long_word + "a", words), "");
}

}  // namespace
}  // namespace hadal
