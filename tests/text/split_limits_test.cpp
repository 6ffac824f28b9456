// Tests patterns that run on PCRE2: what is bounded, and that the bounds change no piece of ordinary text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "tests/text/split_pieces.h"
#include "text/tokenizer/splitter.h"

namespace hadal {
namespace {

using ::testing::HasSubstr;

// Splits with PCRE2.
Pieces split(const std::string& pattern, const std::string& text, std::chrono::nanoseconds time = kAnHour) {
  return split(*make_pcre2_splitter(pattern).value(), text, time);
}

// Returns what the error says; empty if there is none.
std::string limit_error(const std::string& pattern, const std::string& text,
                        std::chrono::nanoseconds time = kAnHour) {
  try {
    split(pattern, text, time);
  } catch (const PatternLimitError& error) {
    return error.what();
  }
  return "";
}

std::string repeated(const std::string& what, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += what;
  return out;
}

TEST(Pcre2Limits, LongPiecesAreThoseOfALinearSplitter) {
  std::string text;
  for (const size_t length : {1, 4'090, 4'091, 4'092, 4'093, 4'094, 4'095, 4'096, 4'097, 10'000, 70'000})
    text += repeated("aéж", length / 3) + repeated(" ", length % 5) + std::string(length % 3, 'b') + "\n";
  const auto classes = make_unicode_classes();
  for (const std::string pattern :
       {R"(\s?[A-Za-zµÀ-ÖØ-öΑ-Ωж]+)", R"(\p{L}{2,4})", R"( ?[\p{L}\p{M}]+)", R"([\r\n])"}) {
    const auto linear = make_run_splitter(pattern, classes);
    ASSERT_NE(linear, nullptr) << pattern;
    EXPECT_EQ(split(pattern, text), split(*linear, text)) << pattern;
  }
}

TEST(Pcre2Limits, PatternsSeeWhatFollowsALongPiece) {
  const std::string spaces(10'000, ' ');
  EXPECT_EQ(split(R"(\s+(?!\S)|\s+)", spaces + "a"), (Pieces{spaces.substr(1), " ", "a"}));
  EXPECT_EQ(split(R"(\s+$)", spaces + "\na"), (Pieces{spaces, "\na"}));
  const std::string run = repeated("x", 5'000);
  EXPECT_EQ(split("x+(?=y)", run + "y"), (Pieces{run, "y"}));
  EXPECT_EQ(split("(?<=a)x+", "a" + run), (Pieces{"a", run}));
}

TEST(Pcre2Limits, AnEmptyMatchSplitsTheText) {
  EXPECT_EQ(split("(?=b)", "aabab"), (Pieces{"aa", "ba", "b"}));
  EXPECT_EQ(split("(?=é)", "éaé"), (Pieces{"éa", "é"}));
}

TEST(Pcre2Limits, APieceHasAtMost256KiB) {
  const std::string longest((256 << 10) - 1, 'a');
  EXPECT_EQ(split("[^!]+", longest + "!!"), (Pieces{longest, "!!"}));
  EXPECT_THAT(limit_error("[^!]+", longest + "a!"),
              HasSubstr("the pattern \"[^!]+\" of tokenizer.json looks at more than 256 KiB at once"));
}

TEST(Pcre2Limits, BacktrackingIsBounded) {
  const std::string text(20'000, 'a');
  for (const char* pattern : {"(a+)+[bc]", "a*a*a*a*[bc]", "a*?a*?a*?[bc]", ".*.*.*[xy]", "(?:.*a){20}[xy]",
                              R"(\p{L}*\p{L}*\p{L}*[0-9])", R"((a*)*\1[bc])"}) {
    EXPECT_THAT(limit_error(pattern, text), HasSubstr("of tokenizer.json takes more than")) << pattern;
  }
}

// Each attempt is cheap, but there is one for each character of the text, and each goes through all of it.
TEST(Pcre2Limits, AttemptsTogetherAreBounded) {
  EXPECT_THAT(limit_error("(?=[^QR]*+[QR])a", std::string(100'000, 'a'), std::chrono::milliseconds(10)),
              HasSubstr("takes more than 0.05 s and 1 µs for each byte"));
}

TEST(Pcre2Limits, AnErrorShowsABeginningOfThePattern) {
  const std::string pattern = "[^!]+|" + repeated("é\x01", 100);
  const std::string error = limit_error(pattern, std::string(300 << 10, 'a'));
  EXPECT_THAT(error, HasSubstr(R"("[^!]+|é\x01é\x01)"));
  EXPECT_THAT(error, HasSubstr("...\" of tokenizer.json"));
  EXPECT_LT(error.size(), 400U);
}

TEST(Pcre2Limits, PatternsThatChangeLimitsAreRefused) {
  for (const char* pattern : {"(*LIMIT_MATCH=4000000000)a", "(*NO_JIT)a", "a(*COMMIT)b", "\\Ga"}) {
    const auto made = make_pcre2_splitter(pattern);
    ASSERT_FALSE(made.ok()) << pattern;
    EXPECT_EQ(made.status().code, StatusCode::kUnsupported);
  }
  EXPECT_TRUE(make_pcre2_splitter("[(*]a").ok());
  EXPECT_THAT(make_pcre2_splitter(std::string(70'000, 'a')).status().message,
              HasSubstr("a pattern has 70000 bytes; at most 65536 are supported"));
}

}  // namespace
}  // namespace hadal
