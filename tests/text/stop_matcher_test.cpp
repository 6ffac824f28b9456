#include "text/stop/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace hadal {
namespace {

// Returns what the stream shows if `text` arrives in pieces of `piece` bytes.
std::string stream(StopMatcher& matcher, const std::string& text, size_t piece) {
  std::string shown;
  for (size_t at = 0; at < text.size(); at += piece) shown += matcher.append(text.substr(at, piece));
  return shown + std::string(matcher.finish());
}

TEST(StopMatcher, HoldsBackAPossibleBeginningOfAStop) {
  StopMatcher matcher({"STOP", "\nUser:"});
  EXPECT_EQ(matcher.append("abc ST"), "abc ");
  EXPECT_EQ(matcher.append("AR\nUs"), "STAR");
  EXPECT_EQ(matcher.append("e"), "");
  EXPECT_EQ(matcher.append("d"), "\nUsed");
  EXPECT_EQ(matcher.append("x\nUser: y"), "x");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.matched(), "\nUser:");
  EXPECT_EQ(matcher.append("more"), "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, ReleasesTheHeldTextAtTheEnd) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.append("the EN"), "the ");
  EXPECT_EQ(matcher.finish(), "EN");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcher, KeepsTheStopWhenAsked) {
  StopMatcher matcher({"END"}, true);
  EXPECT_EQ(matcher.append("the E"), "the ");
  EXPECT_EQ(matcher.append("ND of"), "END");
  EXPECT_EQ(matcher.matched(), "END");
}

TEST(StopMatcher, FirstCompletedStopWinsAndTheLongestOfThose) {
  StopMatcher matcher({"b", "abc", "ab"});
  EXPECT_EQ(matcher.append("xxabc"), "xx");
  EXPECT_EQ(matcher.matched(), "ab");
}

TEST(StopMatcher, IgnoresEmptyStops) {
  StopMatcher matcher({""});
  EXPECT_EQ(matcher.append("abc"), "abc");
  EXPECT_FALSE(matcher.stopped());
}

TEST(StopMatcher, ShowsTheSameHoweverTheTextIsCut) {
  const uint32_t seed = 7;
  std::mt19937 rng(seed);
  const auto random_string = [&](size_t size) {
    std::string out;
    for (size_t i = 0; i < size; ++i) out += static_cast<char>('a' + rng() % 2);
    return out;
  };
  for (int i = 0; i < 2000; ++i) {
    const std::vector<std::string> stops = {random_string(2 + rng() % 5), random_string(3 + rng() % 6)};
    const std::string text = random_string(rng() % 40);
    // By definition the result is the text before the stop whose end comes first or, if several stops end
    // there, before the longest of them.
    size_t stop_end = std::string::npos;
    size_t stop_begin = std::string::npos;
    for (const std::string& stop : stops) {
      const size_t at = text.find(stop);
      if (at == std::string::npos) continue;
      const size_t end = at + stop.size();
      if (end < stop_end || (end == stop_end && at < stop_begin)) {
        stop_end = end;
        stop_begin = at;
      }
    }
    const std::string expected = text.substr(0, stop_begin);
    for (const size_t piece : {size_t{1}, size_t{2}, size_t{5}, size_t{100}}) {
      StopMatcher matcher(stops);
      ASSERT_EQ(stream(matcher, text, piece), expected)
          << "seed " << seed << ": " << text << " stops " << stops[0] << ", " << stops[1];
      ASSERT_EQ(matcher.stopped(), stop_begin != std::string::npos);
    }
  }
}

}  // namespace
}  // namespace hadal
