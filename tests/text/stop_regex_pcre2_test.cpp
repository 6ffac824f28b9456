// Compares stop expressions with PCRE2 on random patterns and texts, cut into random pieces.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/text/random_pattern.h"
#include "text/stop/pcre2_handles.h"
#include "text/stop/stop_regex.h"

namespace hadal {
namespace {

using testing::cut;
using testing::RandomPattern;

PCRE2_SPTR units(const std::string& text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

pcre2::Code compile(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  return pcre2::Code(
      pcre2_compile(units(pattern), pattern.size(), PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
}

struct Reference {
  int count = 0;
  size_t begin = 0;
  size_t end = 0;
};

Reference match(const pcre2_code* code, const std::string& text, uint32_t more) {
  const pcre2::MatchData data(pcre2_match_data_create_from_pattern(code, nullptr));
  Reference out;
  out.count = pcre2_match(code, units(text), text.size(), 0, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY | more,
                          data.get(), nullptr);
  out.begin = pcre2_get_ovector_pointer(data.get())[0];
  out.end = pcre2_get_ovector_pointer(data.get())[1];
  return out;
}

bool has_assertion(const std::string& pattern) {
  for (const char* const text : {"^", "$", "\\b", "\\B", "\\A", "\\z", "\\Z"}) {
    if (pattern.find(text) != std::string::npos) return true;
  }
  return false;
}

// PCRE2 searches the whole text again after each piece. Both find the same match, and the text that is held
// back begins where PCRE2's partial match begins. With assertions, PCRE2 also holds back text that cannot
// match any more, and misses some text that can. There the test compares only the match, and checks that it
// was not shown yet.
TEST(StopRegexReference, EndsAndHoldsBackAsPcre2DoesHoweverTheTextIsCut) {
  size_t num_patterns = 0;
  size_t num_matches = 0;
  size_t num_holds = 0;
  for (uint32_t seed = 0; seed < 6000; ++seed) {
    RandomPattern random(seed);
    const std::string pattern = random.pattern();
    const auto regex = StopRegex::compile(pattern);
    const pcre2::Code code = compile(pattern);
    if (!regex.ok()) {
      // Random text can be a back-reference or, because the flag x ignores spaces, a possessive quantifier.
      const std::string& message = regex.status().message;
      const bool is_limit =
          message.find("states") != std::string::npos || message.find("not supported") != std::string::npos;
      ASSERT_TRUE(code == nullptr || is_limit) << pattern << ": " << message;
      continue;
    }
    if (code == nullptr) {  // the same name twice
      ASSERT_NE(pattern.find("(?<n>"), std::string::npos) << pattern;
      continue;
    }
    ++num_patterns;
    for (int i = 0; i < 12; ++i) {
      StopRegexSearch search(*regex);
      std::string text;
      uint64_t shown = 0;
      for (const std::string& piece : cut(random.text(), random)) {
        text += piece;
        const auto found = search.append(piece);
        const Reference expected = match(code.get(), text, 0);
        if (expected.count == PCRE2_ERROR_MATCHLIMIT) break;
        const std::string where =
            "seed " + std::to_string(seed) + ": '" + pattern + "' in '" + text + "', last '" + piece + "'";
        ASSERT_EQ(found.has_value(), expected.count > 0) << where;
        if (found) {
          ASSERT_EQ(found->begin, expected.begin) << where;
          ASSERT_EQ(found->end, expected.end) << where;
          ASSERT_GE(found->begin, shown) << where;
          ++num_matches;
          break;
        }
        shown = search.hold();
        if (has_assertion(pattern)) continue;
        const Reference partial = match(code.get(), text, PCRE2_PARTIAL_SOFT);
        if (partial.count == PCRE2_ERROR_MATCHLIMIT) break;
        ASSERT_EQ(shown, partial.count == PCRE2_ERROR_PARTIAL ? partial.begin : text.size()) << where;
        num_holds += shown < text.size() ? 1 : 0;
      }
    }
  }
  EXPECT_GT(num_patterns, 4000U);
  EXPECT_GT(num_matches, 10000U);
  EXPECT_GT(num_holds, 5000U);
}

}  // namespace
}  // namespace hadal
