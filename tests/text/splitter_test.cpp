// Compares the hand-written splitters with PCRE2 on the same patterns.
#include "text/tokenizer/splitter.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/text/split_pieces.h"
#include "text/utf8.h"

namespace hadal {
namespace {

// The classes of these characters are the same in every Unicode version since 12, and they cover all classes
// that patterns distinguish.
const std::vector<std::string>& alphabet() {
  static const std::vector<std::string> kAlphabet = {"a",
                                                     "Z",
                                                     "q",
                                                     "s",
                                                     "1",
                                                     "7",
                                                     " ",
                                                     " ",
                                                     "\n",
                                                     "\r",
                                                     "\t",
                                                     "'",
                                                     "!",
                                                     "$",
                                                     "_",
                                                     "<",
                                                     ".",
                                                     "é",
                                                     "ß",
                                                     "Ω",
                                                     "ж",
                                                     "中",
                                                     "龥",
                                                     "あ",
                                                     "ア",
                                                     "・",
                                                     "゠",
                                                     "한",
                                                     "\u0301",
                                                     "\u20dd",
                                                     "٣",
                                                     "½",
                                                     "Ⅷ",
                                                     "。",
                                                     "！",
                                                     "～",
                                                     "‘",
                                                     "€",
                                                     "☃",
                                                     "\u3000",
                                                     "\u00a0",
                                                     "\u2028",
                                                     "\u0085",
                                                     "\u200b",
                                                     "\u200d",
                                                     "\ufeff",
                                                     std::string(1, '\0'),
                                                     "\x01",
                                                     "\x7f",
                                                     "\ue000",
                                                     "𝒜",
                                                     "𠀀",
                                                     "👍",
                                                     "𐐀",
                                                     "\U0001e900"};
  return kAlphabet;
}

std::string random_text(std::mt19937& rng) {
  std::string text;
  const size_t size = 1 + rng() % 24;
  // There are few distinct characters at a time, so that runs have similar neighbours.
  std::vector<std::string> few;
  for (int i = 0; i < 5; ++i) few.push_back(alphabet()[rng() % alphabet().size()]);
  for (size_t i = 0; i < size; ++i) text += few[rng() % few.size()];
  return text;
}

void expect_equal_splits(const Splitter& ours, const std::vector<std::string>& patterns, int count) {
  const uint32_t seed = 20240607;
  std::mt19937 rng(seed);
  std::vector<std::unique_ptr<Splitter>> steps;
  for (const std::string& pattern : patterns) {
    auto step = make_pcre2_splitter(pattern);
    ASSERT_TRUE(step.ok()) << step.status().message;
    steps.push_back(std::move(step).value());
  }
  for (int i = 0; i < count; ++i) {
    const std::string text = random_text(rng);
    Pieces expected = {text};
    for (const auto& step : steps) {
      Pieces next;
      for (const std::string& piece : expected)
        for (std::string& part : split(*step, piece)) next.push_back(std::move(part));
      expected = std::move(next);
    }
    ASSERT_EQ(split(ours, text), expected) << "seed " << seed << " text " << i << ": " << text;
  }
}

TEST(V3Splitter, EqualsThePublishedPatterns) {
  const auto classes = make_unicode_classes();
  const auto ours = make_v3_splitter(classes);
  expect_equal_splits(
      *ours, {std::string(v3_pattern(0)), std::string(v3_pattern(1)), std::string(v3_pattern(2))}, 60000);
}

TEST(RunSplitter, EqualsItsPatterns) {
  const auto classes = make_unicode_classes();
  const std::string patterns[] = {R"(\p{N}{1,3})",
                                  "[一-龥\u3040-ゟ゠-ヿ]+",
                                  "[\r\n]",
                                  R"([\r\n])",
                                  R"(\s?[A-Za-zµÀ-ÖØ-öΑ-Ωж]+)",
                                  R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)",
                                  R"(\s+$)",
                                  R"(\p{L}{2,4})",
                                  R"( ?[\p{L}\p{M}]+)",
                                  R"(\s?\s)",
                                  R"(\s?[\s]{2,3})",
                                  R"([a\-\]1])",
                                  "[a-]+",
                                  R"( ?[ a]+)"};
  for (const std::string& pattern : patterns) {
    const auto ours = make_run_splitter(pattern, classes);
    ASSERT_NE(ours, nullptr) << pattern;
    SCOPED_TRACE(pattern);
    expect_equal_splits(*ours, {pattern}, 6000);
  }
}

TEST(RunSplitter, LeavesOtherPatternsToPcre2) {
  const auto classes = make_unicode_classes();
  for (const char* pattern : {"", "a", "[^a]+", "[a]*", "[a]+b", "a|b", "[[:alpha:]]+", "[a&&b]", R"([\d]+)",
                              "[a]{1,}", "[z-a]", "[a", "[]", R"(\p{Lu}+)",
                              R"(\s+)"
                              "(?!\\S)",
                              "[a]{3,1}", "[a]{0,2}", R"([\s-a])"})
    EXPECT_EQ(make_run_splitter(pattern, classes), nullptr) << pattern;
}

TEST(DigitsSplitter, CutsEveryDigitOrEveryRun) {
  const auto classes = make_unicode_classes();
  EXPECT_EQ(split(*make_digits_splitter(true, classes), "ab12c٣½"), (Pieces{"ab", "1", "2", "c", "٣", "½"}));
  EXPECT_EQ(split(*make_digits_splitter(false, classes), "ab12c٣½"), (Pieces{"ab", "12", "c", "٣½"}));
}

TEST(Pcre2Splitter, WhiteSpaceIsThatOfTheReference) {
  const auto splitter = make_pcre2_splitter(R"(\S+)");
  ASSERT_TRUE(splitter.ok());
  EXPECT_EQ(split(**splitter, "a\u180eb c\u0085d"), (Pieces{"a\u180eb", " ", "c", "\u0085", "d"}));
}

TEST(UnicodeClasses, KnowCharactersNewerThanTheRegexLibrary) {
  const auto classes = make_unicode_classes();
  EXPECT_EQ(classes['a'] & (kLetter | kSpace | kNumber), kLetter);
  EXPECT_TRUE(classes[0x1C89] & kLetter);   // Unicode 16
  EXPECT_TRUE(classes[0x323AF] & kLetter);  // Unicode 15
  EXPECT_TRUE(classes[0x3000] & kSpace);
  EXPECT_FALSE(classes[0x180E] & kSpace);
  EXPECT_EQ(classes[0x10FFFF], 0);
}

TEST(Utf8, ClassifiesPrefixes) {
  EXPECT_EQ(classify_utf8_prefix("é").kind, Utf8Prefix::kCharacter);
  EXPECT_EQ(classify_utf8_prefix("\xC3").kind, Utf8Prefix::kIncomplete);
  EXPECT_EQ(classify_utf8_prefix("\xF0\x9F").kind, Utf8Prefix::kIncomplete);
  EXPECT_EQ(classify_utf8_prefix("\xE0\x80").kind, Utf8Prefix::kInvalid);
  EXPECT_EQ(classify_utf8_prefix("\xF5").kind, Utf8Prefix::kInvalid);
}

}  // namespace
}  // namespace hadal
