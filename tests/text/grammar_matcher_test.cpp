// Tests matchers: masks equal the result of trying every token, regular expressions hold, added tokens never
// represent text, and rollback restores what was before.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <regex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/text/grammar_schemas.h"
#include "tests/text/grammar_walk.h"
#include "tests/text/test_data.h"
#include "text/grammar/grammar.h"

namespace hadal {
namespace {

TEST_F(GrammarTest, RandomWalksMatchTheRegex) {
  std::mt19937 random(22);
  for (const char* pattern : {"[a-z]{3,5}@(x|yy)\\.com", "(ab|c)*d?", "[0-9]{1,3}(\\.[0-9]{1,3}){3}",
                              "(yes|no|maybe)", "[^a-y\\n]{2,150}"}) {
    const CompiledRef grammar = compile(GrammarKind::kRegex, pattern);
    ASSERT_NE(grammar, nullptr);
    int num_whole = 0;
    for (int i = 0; i < 20; ++i) {
      GrammarMatcher matcher(grammar);
      const Walk answer = walk(matcher, *tokenizer_, random, eos());
      if (!answer.is_whole) continue;
      ++num_whole;
      const bool is_ascii = std::all_of(answer.text.begin(), answer.text.end(), [](char c) { return c > 0; });
      if (!is_ascii) continue;
      EXPECT_TRUE(std::regex_match(answer.text, std::regex(pattern))) << pattern << ": " << answer.text;
    }
    EXPECT_GE(num_whole, 10) << pattern;
  }
}

// A token is allowed exactly if its bytes lead a fresh matcher, which has read the text so far byte by byte,
// to a state that can continue. The vocabulary has a token for every byte.
TEST_F(GrammarTest, MasksEqualTheResultOfTryingEveryToken) {
  auto tiny = tiny_tokenizer_json();
  int next = 258;
  for (const char* text : {"true", "{\"", "\":", "null", "12", "\"}", ",\"", "fal", "se", "aa"}) {
    tiny["model"]["vocab"][text] = next++;
  }
  const auto tokenizer = Tokenizer::from_json(tiny.dump()).value();
  const int64_t vocab = tokenizer->vocab_size();
  const auto end = tokenizer->token_to_id("abc").value();
  auto compiler = GrammarCompiler::create(*tokenizer, {.end_ids = {end}}).value();
  std::map<char, int32_t> byte_ids;
  for (int32_t t = 0; t < vocab; ++t)
    if (tokenizer->token_bytes(t).size() == 1) byte_ids[tokenizer->token_bytes(t)[0]] = t;
  ASSERT_EQ(byte_ids.size(), 256U);

  const GrammarSpec specs[] = {
      {GrammarKind::kJsonSchema, kPersonSchema, ""},
      {GrammarKind::kJsonSchema,
       R"({"type": "object", "properties": {"aa": {"type": "string", "maxLength": 4}, "b": {"enum": [true, null, 12]}}, "additionalProperties": {"type": "boolean"}})",
       ""},
      {GrammarKind::kRegex, "(a|aab)*(12|ab)?", ""},
      {GrammarKind::kEbnf, "root ::= \"a\" root \"b\" | \"\" | [0-9]+ ", ""}};
  std::mt19937 random(23);
  for (const GrammarSpec& spec : specs) {
    const CompiledRef grammar = compiler->compile(spec).value();
    for (int round = 0; round < 3; ++round) {
      GrammarMatcher matcher(grammar);
      std::string text;
      for (int step = 0; step < 15; ++step) {
        const std::vector<int32_t> allowed = allowed_of(matcher, vocab);
        GrammarMatcher by_bytes(grammar);
        for (const char c : text) ASSERT_TRUE(by_bytes.accept_token(byte_ids[c]));
        std::vector<int32_t> expected;
        for (int32_t t = 0; t < vocab; ++t) {
          if (t == end) {
            if (by_bytes.is_complete()) expected.push_back(t);
            continue;
          }
          const std::string_view bytes = tokenizer->token_bytes(t);
          size_t taken = 0;
          while (taken < bytes.size() && by_bytes.accept_token(byte_ids[bytes[taken]])) ++taken;
          if (taken == bytes.size() && taken > 0) expected.push_back(t);
          by_bytes.rollback(static_cast<int64_t>(taken));
        }
        ASSERT_EQ(allowed, expected) << spec.text << " after " << text;
        const int32_t choice = allowed[random() % allowed.size()];
        ASSERT_TRUE(matcher.accept_token(choice));
        if (choice == end) break;
        text += tokenizer->token_bytes(choice);
      }
    }
  }
}

// RFC 3629, section 4: no surrogates, no overlong forms, nothing beyond U+10FFFF.
TEST_F(GrammarTest, ACharacterOfAnyClassIsValidUtf8) {
  const auto tokenizer = Tokenizer::from_json(tiny_tokenizer_json().dump()).value();
  const auto end = tokenizer->token_to_id("abc").value();
  auto compiler = GrammarCompiler::create(*tokenizer, {.end_ids = {end}}).value();
  std::vector<int32_t> byte_ids(256, -1);
  for (int32_t t = 0; t < tokenizer->vocab_size(); ++t)
    if (const auto bytes = tokenizer->token_bytes(t); bytes.size() == 1)
      byte_ids[static_cast<unsigned char>(bytes[0])] = t;
  const auto is_second = [](int first, int second) {
    const int low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const int high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    return second >= low && second <= high;
  };
  const std::pair<GrammarSpec, std::string> cases[] = {
      {{GrammarKind::kJsonSchema, R"({"type": "string"})", ""}, "\""},
      {{GrammarKind::kJsonSchema, R"({"type": "string", "maxLength": 9})", ""}, "\""},
      {{GrammarKind::kJsonSchema, R"({"type": "string", "pattern": "^.*$"})", ""}, "\""},
      {{GrammarKind::kJsonSchema, R"({"properties": {"a": {}}, "additionalProperties": true})", ""}, "{\""},
      {{GrammarKind::kJsonSchema, "{}", ""}, "\""},
      {{GrammarKind::kRegex, ".*", ""}, "x"},
      {{GrammarKind::kRegex, "[^q]*", ""}, "x"},
      {{GrammarKind::kRegex, "\\W*", ""}, "!"},
      {{GrammarKind::kEbnf, "root ::= [^q]*", ""}, "x"},
      {{GrammarKind::kEbnf, "root ::= [\\u0000-\\U0010FFFF]*", ""}, "x"}};
  for (const auto& [spec, before] : cases) {
    const CompiledRef grammar = compiler->compile(spec).value();
    GrammarMatcher matcher(grammar);
    for (const char c : before)
      ASSERT_TRUE(matcher.accept_token(byte_ids[static_cast<unsigned char>(c)])) << spec.text;
    for (int first = 0x80; first <= 0xFF; ++first) {
      const bool is_taken = matcher.accept_token(byte_ids[first]);
      EXPECT_EQ(is_taken, first >= 0xC2 && first <= 0xF4) << spec.text << " begins with " << first;
      if (!is_taken) continue;
      for (int second = 0; second <= 0xFF; ++second) {
        const bool goes_on = matcher.accept_token(byte_ids[second]);
        EXPECT_EQ(goes_on, is_second(first, second)) << spec.text << ": " << first << ' ' << second;
        if (goes_on) matcher.rollback(1);
      }
      matcher.rollback(1);
    }
  }
}

TEST_F(GrammarTest, AddedTokensNeverStandForTextInStringsAndPatterns) {
  const CompiledRef string = compile(GrammarKind::kJsonSchema, R"({"type": "string"})");
  const CompiledRef limited = compile(GrammarKind::kJsonSchema, R"({"type": "string", "maxLength": 50})");
  const CompiledRef pattern = compile(GrammarKind::kRegex, ".*");
  const CompiledRef negated = compile(GrammarKind::kRegex, "[^q]*");
  for (const auto& [grammar, start] :
       {std::pair{string, "\""}, {limited, "\""}, {pattern, "x"}, {negated, "x"}}) {
    GrammarMatcher matcher(grammar);
    ASSERT_TRUE(matcher.accept_token(id(start)));
    for (const int32_t t : allowed_of(matcher))
      EXPECT_TRUE(!tokenizer_->is_added(t) || t == eos()) << tokenizer_->id_to_token(t);
    EXPECT_FALSE(matcher.accept_token(id("<｜tool▁sep｜>")));
    EXPECT_FALSE(matcher.accept_token(id("</think>")));
  }
}

TEST_F(GrammarTest, ReasoningIsFreeUntilItsEnd) {
  const CompiledRef grammar = compile(GrammarKind::kRegex, "ok");
  GrammarMatcher matcher(grammar, {.start_after_token = id("</think>")});
  EXPECT_EQ(static_cast<int64_t>(allowed_of(matcher).size()), kPaddedVocab - 1) << "all but the end token";
  EXPECT_TRUE(matcher.accept_token(id("q")));
  EXPECT_FALSE(matcher.accept_token(eos()));
  EXPECT_FALSE(matcher.is_complete());
  EXPECT_TRUE(matcher.accept_token(id("</think>")));
  EXPECT_FALSE(matcher.accept_token(id("q")));
  EXPECT_TRUE(matcher.accept_token(id("o")));
  EXPECT_TRUE(matcher.accept_token(id("k")));
  EXPECT_EQ(allowed_of(matcher), std::vector<int32_t>{eos()});
  EXPECT_TRUE(matcher.accept_token(eos()));
  EXPECT_TRUE(matcher.is_terminated());
  EXPECT_EQ(allowed_of(matcher), std::vector<int32_t>{eos()}) << "after the end only ends";

  matcher.rollback(2);  // undoes the end and "k"
  EXPECT_FALSE(matcher.is_terminated());
  EXPECT_FALSE(matcher.accept_token(eos()));
  EXPECT_TRUE(matcher.accept_token(id("k")));
  matcher.rollback(3);  // undoes into the reasoning
  EXPECT_EQ(static_cast<int64_t>(allowed_of(matcher).size()), kPaddedVocab - 1);
}

TEST_F(GrammarTest, RollbackRestoresTheEarlierState) {
  std::mt19937 random(24);
  const CompiledRef grammar = compile(GrammarKind::kJsonSchema, kLinkedListSchema);
  GrammarMatcher matcher(grammar);
  std::vector<std::vector<int32_t>> masks{allowed_of(matcher)};
  for (int step = 0; step < 300; ++step) {
    if (masks.size() > 1 && random() % 3 == 0) {
      const auto back = 1 + random() % (masks.size() - 1);
      matcher.rollback(static_cast<int64_t>(back));
      masks.resize(masks.size() - back);
      ASSERT_EQ(allowed_of(matcher), masks.back());
    } else {
      const auto& ids = masks.back();
      ASSERT_TRUE(matcher.accept_token(ids[random() % ids.size()]));
      masks.push_back(allowed_of(matcher));
    }
  }
}

}  // namespace
}  // namespace hadal
