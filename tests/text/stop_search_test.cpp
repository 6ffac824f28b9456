#include "text/stop_search.h"

#include <gtest/gtest.h>

#include <string>

namespace hadal {
namespace {

struct Outcome {
  std::string shown;
  std::string matched;
};

std::shared_ptr<const StopPatterns> patterns(std::vector<std::string> strings,
                                             std::vector<std::string> regexes) {
  return StopPatterns::compile(std::move(strings), regexes).value();
}

// Returns everything that is shown of `text`, cut into pieces of `size` bytes.
Outcome run(const std::shared_ptr<const StopPatterns>& stops, const std::string& text, size_t size,
            bool no_stop_trim = false) {
  StopSearch search(stops, no_stop_trim);
  Outcome out;
  for (size_t at = 0; at < text.size() && !search.stopped(); at += size) {
    out.shown += search.append(std::string_view(text).substr(at, size));
  }
  out.shown += search.finish();
  out.matched = search.matched();
  return out;
}

TEST(StopSearch, AWholeExpressionEndsTheTextHoweverItIsCut) {
  const auto stops = patterns({}, {"[0-9]{3}"});
  for (size_t size = 1; size <= 12; ++size) {
    const Outcome out = run(stops, "a12b345c", size);
    EXPECT_EQ(out.shown, "a12b") << size;
    EXPECT_EQ(out.matched, "345") << size;
  }
}

TEST(StopSearch, OnlyAPossibleBeginningOfAMatchIsHeldBack) {
  StopSearch search(patterns({}, {"END[0-9]"}));
  EXPECT_EQ(search.append("text E"), "text ");
  EXPECT_EQ(search.append("N"), "");
  EXPECT_EQ(search.append("x"), "ENx");
  EXPECT_EQ(search.append("END"), "");
  EXPECT_EQ(search.finish(), "END");
}

TEST(StopSearch, TheMatchThatEndsFirstStopsTheText) {
  const auto stops = patterns({"stop"}, {"[0-9]+;"});
  for (size_t size = 1; size <= 14; ++size) {
    EXPECT_EQ(run(stops, "ab stop 12; x", size).shown, "ab ") << size;
    EXPECT_EQ(run(stops, "ab 12; stop x", size).shown, "ab ") << size;
    EXPECT_EQ(run(stops, "ab sto 12 x", size).shown, "ab sto 12 x") << size;
    EXPECT_EQ(run(stops, "ab stop 12; x", size, true).shown, "ab stop") << size;
    EXPECT_EQ(run(stops, "ab 12; stop x", size, true).shown, "ab 12;") << size;
  }
}

TEST(StopSearch, ExpressionsMatchCharactersNotBytes) {
  const auto stops = patterns({}, {"ä.ö"});
  EXPECT_EQ(run(stops, "xä漢ö!", 64).shown, "x");
}

TEST(StopSearch, AnEmptyMatchDoesNotStop) {
  EXPECT_EQ(run(patterns({}, {"z*"}), "abc", 1).shown, "abc");
}

TEST(StopSearch, APatternThatBacktracksTooLongEndsTheSearch) {
  StopSearch search(patterns({"never"}, {"(a+)+$b"}));
  EXPECT_EQ(search.append("x"), "x");
  EXPECT_TRUE(search.failure().empty());
  EXPECT_EQ(search.append(std::string(4000, 'a')), "");
  EXPECT_TRUE(search.stopped());
  EXPECT_NE(search.failure().find("stop_regex"), std::string::npos);
  EXPECT_EQ(search.append("a"), "");
  EXPECT_EQ(search.finish(), "");
}

// Each expression has its share of the steps: what one alone may use is too much for one of eight.
TEST(StopSearch, ExpressionsShareTheirSteps) {
  const std::string slow = "(?:a|aa)*b";
  const auto failing_at = [](const std::vector<std::string>& regexes) {
    StopSearch search(patterns({}, regexes));
    size_t size = 0;
    while (!search.stopped() && size < 100) {
      search.append("a");
      ++size;
    }
    EXPECT_FALSE(search.failure().empty());
    return size;
  };
  EXPECT_LT(failing_at({slow, "1", "2", "3", "4", "5", "6", "7"}), failing_at({slow}));
  EXPECT_FALSE(StopPatterns::compile({}, {"1", "2", "3", "4", "5", "6", "7", "8", "9"}).ok());
}

TEST(StopSearch, PatternsMayNestDeeperThanTheTranslatedCodesStack) {
  const auto stops = patterns({}, {"\\((?:[^()]|(?R))*\\)"});
  const std::string nested = std::string(600, '(') + std::string(600, ')');
  EXPECT_EQ(run(stops, "f" + nested + "g", 2000).shown, "f");
}

TEST(StopSearch, BrokenPatternsAreErrorsThatNameThem) {
  const auto broken = StopPatterns::compile({}, {"a(b"});
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.status().code, StatusCode::kInvalidArgument);
  EXPECT_NE(broken.status().message.find("a(b"), std::string::npos);
  EXPECT_FALSE(StopPatterns::compile({}, {"\xff"}).ok());
  EXPECT_TRUE(patterns({""}, {""})->empty());
}

}  // namespace
}  // namespace hadal
