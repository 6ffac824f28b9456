#include "text/stop/stop_regex_detector.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/text/random_pattern.h"
#include "text/stop/stop_search.h"

namespace hadal {
namespace {

using testing::cut;
using testing::RandomPattern;

// Compares the two piece by piece, up to the first match. Returns true if there was one.
::testing::AssertionResult agree(const StopRegex& regex, const StopRegexTable& table,
                                 const std::vector<std::string>& pieces, size_t& num_matches) {
  StopRegexSearch search(regex);
  StopRegexDetector detector(table);
  std::string text;
  for (const std::string& piece : pieces) {
    text += piece;
    const bool expected = search.append(piece).has_value();
    if (detector.append(piece) != expected) {
      return ::testing::AssertionFailure() << (expected ? "misses a match" : "finds no real match") << " in '"
                                           << text << "', last '" << piece << "'";
    }
    if (!expected) continue;
    ++num_matches;
    break;
  }
  return ::testing::AssertionSuccess();
}

TEST(StopRegexDetector, FindsAMatchWithTheSamePieceAsTheSearch) {
  size_t num_matches = 0;
  for (uint32_t seed = 0; seed < 6000; ++seed) {
    RandomPattern random(seed);
    const std::string pattern = random.pattern();
    const auto regex = StopRegex::compile(pattern);
    if (!regex.ok()) continue;
    const StopRegexTable table(*regex);
    for (int i = 0; i < 12; ++i) {
      ASSERT_TRUE(agree(*regex, table, cut(random.text(), random), num_matches))
          << "seed " << seed << ": " << pattern;
    }
  }
  EXPECT_GT(num_matches, 10000U);
}

// The sets of these expressions have up to 16 words.
TEST(StopRegexDetector, FindsTheMatchesOfLargeExpressionsToo) {
  size_t num_large = 0;
  size_t num_matches = 0;
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    RandomPattern random(seed);
    static const std::vector<std::string> kRepeats = {"{20}", "{0,40}", "{5,}", "{3,30}?", "*", "{0,9}"};
    std::string pattern = "(?:(?:" + random.pattern() + ")" + kRepeats[random.below(kRepeats.size())] +
                          random.pattern() + ")" + kRepeats[random.below(kRepeats.size())] + "[b1]" +
                          (random.below(2) == 0 ? random.pattern() : "_");
    const auto regex = StopRegex::compile(pattern);
    if (!regex.ok()) continue;
    num_large += regex->num_states() > 128 ? 1 : 0;
    const StopRegexTable table(*regex);
    for (int i = 0; i < 4; ++i) {
      std::string text;
      for (int part = 0; part < 6; ++part) text += random.text();
      if (random.below(3) == 0) text += std::string(random.below(99), random.below(2) == 0 ? 'a' : '\n');
      ASSERT_TRUE(agree(*regex, table, cut(text, random), num_matches)) << "seed " << seed << ": " << pattern;
    }
  }
  EXPECT_GT(num_large, 500U);
  EXPECT_GT(num_matches, 1000U);
}

TEST(StopRegexDetector, ARunOfOneCharacterChangesNothingWhereItEnds) {
  for (const char* const pattern :
       {"a{30}b", "(?:a?){40}b{3}", "\\n$", "a\\n\\Z", "a+\\b", "^a{50}$", "(?m)^$\\n{3}x"}) {
    const StopRegex regex = StopRegex::compile(pattern).value();
    const StopRegexTable table(regex);
    size_t num_matches = 0;
    for (size_t count = 0; count < 60; ++count) {
      for (const char* const end : {"", "b", "bbb", "\n", "\n\n", " ", "\nx", "é"}) {
        const std::string run(count, 'a');
        const std::string lines(count % 5, '\n');
        EXPECT_TRUE(agree(regex, table, {run + lines, end}, num_matches)) << pattern;
        EXPECT_TRUE(agree(regex, table, {run, lines + end}, num_matches)) << pattern;
      }
    }
    EXPECT_GT(num_matches, 0U) << pattern;
  }
}

// A search visits each of the up to 1,024 states for each of these characters.
TEST(StopRegexDetector, FollowsFewRowsHoweverManyStatesAreActive) {
  std::string letters;
  for (size_t i = 0; i < 2000; ++i) letters += static_cast<char>('a' + (i * i * 7 + i / 3) % 26);
  for (const char* const pattern :
       {"(?:.?){330}Q", ".{0,330}Q", "[a-z]{900}!", "(?:[a-z]?){330}!", "(.*[a-z]){120}!",
        "(?:\\w|\\pL|[a-z]|.){90}Q", "(?:[a-z]+[a-z0-9]*){50}!", "(?:\\B[a-z]?){160}!",
        "(?:[a-z][a-y]?){200}!", "(.*)*(.*)*(.*)*!"}) {
    const StopRegex regex = StopRegex::compile(pattern).value();
    const StopRegexTable table(regex);
    StopRegexDetector detector(table);
    for (const char c : letters) ASSERT_FALSE(detector.append({&c, 1})) << pattern;
    EXPECT_LE(detector.num_rows(), 4 * letters.size()) << pattern;
  }
}

TEST(StopCheck, StopsWithTheSamePieceAsTheSearch) {
  const auto stops = StopPatterns::compile({"stop", "op 1"}, {"[0-9]+;", "x.{0,3}y"}).value();
  for (const std::string text :
       {"ab stop 12; x", "ab 12; stop x", "ab sto 12 x", "a x漢y b", "sto", "x12345y;", ""}) {
    for (size_t size = 1; size <= 14; ++size) {
      RandomPattern random(static_cast<uint32_t>(size));
      StopSearch search(stops);
      StopCheck check(stops);
      for (const std::string& piece : cut(text, random)) {
        search.append(piece);
        EXPECT_EQ(check.append(piece), search.stopped()) << text << " " << piece;
      }
    }
  }
}

TEST(StopCheck, TakesASmallPartOfTheMemoryOfASearch) {
  const auto stops = StopPatterns::compile({}, {"(?:[a-z]?){330}!"}).value();
  EXPECT_LT(stops->check_bytes() * 50, stops->search_bytes());
  EXPECT_GT(stops->bytes(), StopPatterns::compile({}, {"(?:[a-z]?){30}!"}).value()->bytes() + (10 << 10));
}

}  // namespace
}  // namespace hadal
