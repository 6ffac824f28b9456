#include "text/stop/stop_regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "text/stop/stop_search.h"

namespace hadal {
namespace {

std::string refusal(const std::string& pattern) {
  const auto regex = StopRegex::compile(pattern);
  return regex.ok() ? "" : regex.status().message;
}

// Returns the match in `text`, which comes in one piece; "" if there is none.
std::string matched(const std::string& pattern, const std::string& text) {
  const StopRegex regex = StopRegex::compile(pattern).value();
  StopRegexSearch search(regex);
  const auto found = search.append(text);
  return found ? text.substr(found->begin, found->end - found->begin) : "";
}

// PCRE2 looks up the other case of each character of such a range: a class of 580 ranges took 3 s to compile.
TEST(StopRegex, CaseInsensitiveRangesCostOneForEachCharacter) {
  EXPECT_EQ(stop_regex_range_chars("[a-zA-Z0-9_]"), 62U);
  EXPECT_EQ(stop_regex_range_chars("[^a-z]"), 26U);
  EXPECT_EQ(stop_regex_range_chars("[а-я]"), 32U);
  EXPECT_EQ(stop_regex_range_chars("[]-a]"), 5U);
  EXPECT_EQ(stop_regex_range_chars("[-a]"), 0U);
  EXPECT_EQ(stop_regex_range_chars("[a-]"), 0U);
  EXPECT_EQ(stop_regex_range_chars("[\\w-z]"), 0U);
  EXPECT_EQ(stop_regex_range_chars("[[:alpha:]\\p{L}\\pN]"), 0U);
  EXPECT_EQ(stop_regex_range_chars("[\\]-\\`]"), 4U);
  EXPECT_EQ(stop_regex_range_chars("[\\x{100}-\\x{1ff}]"), 256U);
  EXPECT_EQ(stop_regex_range_chars("[\\N{U+100}-\\o{777}]"), 256U);
  EXPECT_EQ(stop_regex_range_chars("[\\x{80}-\\x{10ffff}]"), 0x10FF80U);
  EXPECT_GE(stop_regex_range_chars("[\\x{ 80 }-\\x{ 10ffff }]"), 0x10FF80U);
  EXPECT_GE(stop_regex_range_chars("[\\0-\\777]"), 512U);
  EXPECT_GE(stop_regex_range_chars("[\\xa0-\\xff]"), 96U);
  const std::string all = "\u0080-\U0010ffff";
  EXPECT_EQ(refusal("(?i)[" + all + "]"), "");
  EXPECT_THAT(refusal("(?i)[" + all + "][\u0081-\U0010ffff]"), ::testing::HasSubstr("states"));
  EXPECT_THAT(refusal("(?i)[" + all + all + "]"), ::testing::HasSubstr("states"));
  EXPECT_THAT(refusal(R"((?i)[\x80-\x{10ffff}][\x{81}-\x{10ffff}])"), ::testing::HasSubstr("states"));
  // Ranges of alphabets are accepted, because they have few characters.
  EXPECT_EQ(refusal("(?i)[а-яё][α-ω][ա-ֆ][a-zà-öø-ÿ]{20}[\u0100-\u024f]+"), "");
}

TEST(StopRegex, ManyRangesBeyondAsciiAreRefusedUnderTheFlagI) {
  std::string ranges;
  for (int i = 0; i < 580; ++i) ranges += "\u0100-\U0010fffe";
  EXPECT_THAT(refusal("(?i)[" + ranges + "]"), ::testing::HasSubstr("states"));
  EXPECT_EQ(refusal("[" + ranges + "]"), "");
  EXPECT_EQ(refusal("(?i)[а-яё]"), "");
}

TEST(StopRegex, MatchesWhatPcre2Matches) {
  struct Case {
    std::string pattern;
    std::string text;
    std::string match;
  };
  const Case cases[] = {
      {"a+", "xaaay", "aaa"},
      {"a+?", "xaaay", "a"},
      {"a|ab", "xab", "a"},
      {"ab|a", "xab", "ab"},
      {"(a|b){2,3}", "xabab", "aba"},
      {"(?<name>a)(?P<other>b)(?:c)", "abc", "abc"},
      {"^b", "a\nb", ""},
      {"(?m)^b$", "a\nb\nc", "b"},
      {"b$", "ab\n", "b"},
      {"b\\z", "ab\n", ""},
      {"\\bcat\\b", "concat cat", "cat"},
      {"a.b", "a\nb", ""},
      {"(?s)a.b", "a\nb", "a\nb"},
      {"(?i)straße", "STRASSE STRAßE", "STRAßE"},
      {"(?i:k)l", "\u212al", "\u212al"},
      {"a(?i)b|c", "C", "C"},
      {"(?x) a b # comment", "ab", "ab"},
      {"a{,3}", "aaa{,3}", "a{,3}"},
      {"\\d+", "x٣٤", "٣٤"},
      {"\\p{Han}+", "abc漢字", "漢字"},
      {"[[:upper:]\\]-]+", "ab]-C", "]-C"},
      {"(?:|a)+", "aa", "a"},
      {"(a*)*b", "xaab", "aab"},
  };
  for (const Case& one : cases) {
    EXPECT_EQ(matched(one.pattern, one.text), one.match) << one.pattern << " in " << one.text;
  }
}

TEST(StopRegex, WhatNeedsBacktrackingIsRefusedByNameAndPlace) {
  struct Case {
    std::string pattern;
    std::string message;
  };
  const Case cases[] = {
      {"(.*)\\1!", "back-references are not supported (\\1 at byte 4)"},
      {"(?<a>b)\\k<a>", "back-references are not supported (\\k at byte 7)"},
      {"(?P<a>b)(?P=a)", "back-references are not supported ((?P= at byte 8)"},
      {"a(?=b)", "look-ahead is not supported ((?= at byte 1)"},
      {"a(?!b)", "look-ahead is not supported ((?! at byte 1)"},
      {"(?<=a)b", "look-behind is not supported ((?<= at byte 0)"},
      {"(?<!a)b", "look-behind is not supported ((?<! at byte 0)"},
      {"é(?>b)", "atomic groups are not supported ((?> at byte 2)"},
      {"a++", "possessive quantifiers are not supported (++ at byte 1)"},
      {"\\((?:[^()]|(?R))*\\)", "recursion is not supported ((?R at byte 11)"},
      {"(a)(?1)", "recursion is not supported ((?1 at byte 3)"},
      {"(a)?(?(1)b|c)", "conditionals are not supported ((?( at byte 4)"},
      {"(?C1)a", "callouts are not supported ((?C at byte 0)"},
      {"(*NO_JIT)a", "verbs are not supported ((* at byte 0)"},
      {"(?|a|b)", "branch reset groups are not supported ((?| at byte 0)"},
      {"a\\Kb", "\\K is not supported (\\K at byte 1)"},
      {"\\Ga", "\\G is not supported (\\G at byte 0)"},
      {"\\R", "\\R is not supported (\\R at byte 0)"},
      {"\\X", "\\X is not supported (\\X at byte 0)"},
      {"\\C", "\\C is not supported (\\C at byte 0)"},
      {"[\\Qa]", "quoting is not supported (\\Q at byte 1)"},
      {"(a", "the group at byte 0 has no closing parenthesis"},
      {"a)", "a closing parenthesis at byte 1 has no group"},
      {"a**", "the quantifier at byte 2 follows nothing that can be repeated"},
      {"[a", "the class at byte 0 has no closing bracket"},
      {"(?J)a", "the flag J at byte 2 is not supported; allowed are i, m, s, x"},
      {"xy[b-a]", "range out of order in character class at byte 5"},
      {"a{3,2}", "the quantifier at byte 1 is {3,2}; its first number must not be larger than its second"},
      {"\\", "the pattern ends in a backslash"},
      {"\\y", "the escape \\y at byte 0 is unknown"},
  };
  for (const Case& one : cases) EXPECT_EQ(refusal(one.pattern), one.message) << one.pattern;
}

std::string nested(size_t depth) {
  return std::string(depth, '(') + "a" + std::string(depth, ')');
}

TEST(StopRegex, RefusesLargeProgramsBeforeRepeatsAreExpanded) {
  for (const char* const pattern : {"(?:a{99}){99}", "(((a{99}){99}){99}){99}", "a{65535}",
                                    "(?:(?:a{60000}){60000}){0}", "(a?){1000}", "[ab][cd]{65535}"}) {
    EXPECT_NE(refusal(pattern).find("states"), std::string::npos) << pattern;
  }
  // Repeating an empty expression adds no states, however often it is repeated.
  EXPECT_EQ(refusal("(?:(?:(?:){65535}){65535}){65535}a"), "");
  EXPECT_EQ(refusal("a{1000}"), "");
  EXPECT_EQ(refusal(nested(kMaxStopRegexDepth)), "");
  EXPECT_NE(refusal(nested(kMaxStopRegexDepth + 1)).find("nested"), std::string::npos);
  EXPECT_NE(refusal(std::string(kMaxStopRegexBytes + 1, 'a')).find("bytes"), std::string::npos);
  EXPECT_FALSE(StopPatterns::compile({}, {"a{600}", "b{600}"}).ok());
  StopRegexBudget budget;
  EXPECT_TRUE(StopPatterns::compile({}, {"a{600}"}, budget).ok());
  EXPECT_FALSE(StopPatterns::compile({}, {"b{600}"}, budget).ok());
  EXPECT_TRUE(StopPatterns::compile({}, {"b{400}"}, budget).ok());
}

// The search visits each state at most once for each character, and once more at the end of each piece.
TEST(StopRegex, StepsAreLinearInTheTextWhateverThePattern) {
  for (const char* const pattern : {"(a*)*b", "(?:a|aa)*b", "(a+)+$b", ".*.*.*!", "a{500}b",
                                    "(?:a?){250}b{1,20}c", "\\b(?:\\w+\\s*)*\\b;", "((a|b)*(c|d)*)*e"}) {
    const auto steps = [&](size_t size) {
      StopSearch search(StopPatterns::compile({}, {pattern}).value());
      for (size_t i = 0; i < size; ++i) search.append("a");
      EXPECT_FALSE(search.stopped()) << pattern;
      return search.steps();
    };
    const uint64_t once = steps(2000);
    EXPECT_LE(once, 2 * 2000 * kMaxStopRegexStates) << pattern;
    EXPECT_LE(steps(8000), 5 * once) << pattern;
  }
}

TEST(StopRegex, OnlyTextThatIsHeldBackIsKept) {
  StopSearch search(StopPatterns::compile({}, {"END[0-9]{3}", "x.{0,9}y"}).value());
  size_t most = 0;
  size_t shown = 0;
  for (int i = 0; i < 20000; ++i) {
    shown += search.append(i % 3 == 0 ? "some text END12 x" : "END").size();
    most = std::max(most, search.held_bytes());
  }
  EXPECT_LE(most, 100U);
  EXPECT_GT(shown, 100000U);
}

}  // namespace
}  // namespace hadal
