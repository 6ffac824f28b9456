// Tests the compiler of grammars: errors are one line, work is limited, equal specs share one grammar, and
// both compilers and matchers may run in several threads.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/text/grammar_schemas.h"
#include "tests/text/grammar_walk.h"
#include "tests/text/test_data.h"
#include "text/grammar/grammar.h"
#include "text/grammar/memory_limit.h"

namespace hadal {
namespace {

TEST_F(GrammarTest, BrokenGrammarsAreOneCleanLine) {
  const std::pair<GrammarKind, std::string> cases[] = {
      {GrammarKind::kRegex, "("},
      {GrammarKind::kRegex, "a)"},
      {GrammarKind::kRegex, "[z-a]"},
      {GrammarKind::kRegex, "(?=a)b"},
      {GrammarKind::kRegex, "a{3,1}"},
      {GrammarKind::kRegex, ""},
      {GrammarKind::kRegex, std::string("a\0b", 3)},
      {GrammarKind::kRegex, "\xFF\xFE"},
      {GrammarKind::kRegex, std::string(50000, '(')},
      {GrammarKind::kEbnf, "root ::= a"},
      {GrammarKind::kEbnf, "start ::= \"a\""},
      {GrammarKind::kEbnf, "root ::= \"a"},
      {GrammarKind::kEbnf, "root ::= root \"a\""},
      {GrammarKind::kEbnf, "root ::= Token(9999999)"},
      {GrammarKind::kEbnf, "\xFF\xFE"},
      {GrammarKind::kEbnf, "root ::= " + std::string(50000, '(')},
      {GrammarKind::kJsonSchema, R"({"$ref": "#"})"},
      {GrammarKind::kJsonSchema,
       R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})"},
      {GrammarKind::kJsonSchema, R"({"type": "integer", "minimum": 3, "maximum": 2})"},
      {GrammarKind::kJsonSchema, R"({"type": "string", "pattern": "("})"},
      {GrammarKind::kJsonSchema, R"({"oneOf": [{"type": "string"}, {"type": "string"}]})"},
      {GrammarKind::kStructuralTag, "{}"},
      {GrammarKind::kStructuralTag, R"({"type": "structural_tag", "format": {"type": "lark"}})"},
      {GrammarKind::kStructuralTag,
       R"({"type": "structural_tag", "format": {"type": "token", "token": 99999}})"},
  };
  for (const auto& [kind, text] : cases) {
    const auto compiled = compiler_->compile({.kind = kind, .text = text, .field = "the_field"});
    ASSERT_FALSE(compiled.ok()) << text.substr(0, 100);
    const std::string& message = compiled.status().message;
    EXPECT_EQ(compiled.status().code, StatusCode::kInvalidArgument) << message;
    EXPECT_EQ(message.rfind("the_field: ", 0), 0U) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_EQ(message.find("Check failed"), std::string::npos) << message;
    EXPECT_LT(message.size(), 600U);
  }
  const auto nested = compiler_->compile(
      {.kind = GrammarKind::kJsonSchema,
       .text = R"({"type": "object", "properties": {"a": {"type": "string", "pattern": "b"},
                   "c": {"type": "array", "items": {"type": "string", "pattern": "("}}}})",
       .field = "f"});
  ASSERT_FALSE(nested.ok());
  EXPECT_EQ(nested.status().message.rfind("f: \"pattern\" at /properties/c/items: ", 0), 0U)
      << nested.status().message;
  EXPECT_EQ(compiler_->cache_stats().entries, 0) << "failures are not among the grammars";
  const int64_t num_misses = compiler_->cache_stats().num_misses;
  const GrammarSpec broken{.kind = GrammarKind::kRegex, .text = "(a", .field = "regex"};
  const std::string error = compiler_->compile(broken).status().message;
  EXPECT_EQ(compiler_->compile(broken).status().message, error);
  EXPECT_LE(compiler_->cache_stats().num_misses, num_misses + 1) << "a failure is compiled once";
}

TEST_F(GrammarTest, ErrorsTellTheValueAndWhatIsAllowed) {
  const auto error = [&](GrammarKind kind, const std::string& text) {
    const auto compiled = compiler_->compile({.kind = kind, .text = text, .field = "f"});
    return compiled.ok() ? std::string() : compiled.status().message;
  };
  std::string groups(70, '(');
  groups.append("a").append(70, ')');
  EXPECT_EQ(error(GrammarKind::kRegex, groups), "f: its groups are nested 70 deep; at most 64 are allowed");
  EXPECT_EQ(error(GrammarKind::kRegex, ""), "f: it is empty; must have 1 to 262144 bytes");
  EXPECT_EQ(error(GrammarKind::kRegex, std::string("a\0b", 3)),
            "f: byte 1 is zero; zero bytes are not allowed");
  EXPECT_EQ(error(GrammarKind::kEbnf, "root ::= root \"a\""),
            "f: no text of the model's tokens matches \"root ::= root \\\"a\\\"\"; must match one or more, "
            "so no rule may "
            "need itself at its beginning");
  EXPECT_EQ(error(GrammarKind::kJsonSchema, R"({"anyOf": [{"$ref": "#"}]})").substr(0, 56),
            R"(f: no text of the model's tokens matches "{\"anyOf\": [{)");
  EXPECT_EQ(error(GrammarKind::kStructuralTag,
                  R"({"type": "structural_tag", "format": {"type": "repeat", "min": -2, "content": {}}})"),
            "f: at /format/min is -2; must be an integer of -1 to 1024");
}

// The library translates expressions to EBNF, so the columns in the errors of its EBNF parser do not refer to
// the text that the client has sent.
TEST_F(GrammarTest, ErrorsOfExpressionsNamePlacesThatTheClientKnows) {
  const auto error = [&](GrammarKind kind, const std::string& text) {
    const auto compiled = compiler_->compile({.kind = kind, .text = text, .field = "f"});
    return compiled.ok() ? std::string() : compiled.status().message;
  };
  const auto tag_error = [&](const std::string& format) {
    return error(GrammarKind::kStructuralTag, R"({"type": "structural_tag", "format": )" + format + "}");
  };
  const std::string bounds = "Lower bound is larger than upper bound: 3 > 1";
  EXPECT_EQ(error(GrammarKind::kRegex, "abc{3,1}"), "f: " + bounds);
  EXPECT_EQ(error(GrammarKind::kRegex, "abc[z-a]"),
            "f: Invalid character class: lower bound is larger than upper bound");
  EXPECT_EQ(error(GrammarKind::kRegex, "abc(?=d)"),
            "f: Regex parsing error at position 6: Lookahead is not supported yet");
  EXPECT_EQ(error(GrammarKind::kJsonSchema, R"({"type": "string", "pattern": "abc{3,1}"})"),
            "f: \"pattern\" at the root: " + bounds);
  EXPECT_EQ(tag_error(R"({"type": "regex", "pattern": "abc{3,1}"})"), "f: \"pattern\" at /format: " + bounds);
  EXPECT_EQ(
      tag_error(
          R"({"type": "sequence", "elements": [{"type": "regex", "pattern": "a"}, {"type": "json_schema",
          "json_schema": {"type": "array", "items": {"type": "string", "pattern": "abc{3,1}"}}}]})"),
      "f: \"pattern\" at /format/elements/1/json_schema/items: " + bounds);

  // Here the places are in EBNF that the client itself has sent.
  const std::string place = "EBNF parser error at line 2, column ";
  const std::string grammar = R"(root ::= a\na ::= \"b\"{3,1})";
  EXPECT_EQ(error(GrammarKind::kEbnf, "root ::= a\na ::= \"b\"{3,1}").find("f: " + place), 0U);
  const std::string of_tag = tag_error(R"({"type": "sequence", "elements": [{"type": "regex", "pattern": "a"},
      {"type": "grammar", "grammar": ")" +
                                       grammar + "\"}]}");
  EXPECT_EQ(of_tag.find("f: " + place), 0U) << of_tag;
}

// The library's functions recurse for each level, and without end where a rule repeats itself.
TEST_F(GrammarTest, WhatWouldOverflowTheStackIsAnError) {
  const auto error = [&](GrammarKind kind, const std::string& text) {
    const auto compiled = compiler_->compile({.kind = kind, .text = text, .field = "f"});
    return compiled.ok() ? std::string("it compiles") : compiled.status().message;
  };
  for (const char* rules : {"root ::= root{2}", "root ::= (root){0,2}", "root ::= root{2,}",
                            "root ::= \"a\"\nx ::= x{0,2}", "root ::= x{2}\nx ::= y\ny ::= root{2}"})
    EXPECT_EQ(error(GrammarKind::kEbnf, rules),
              "f: its parts are nested in each other too deeply, or without end")
        << rules;
  EXPECT_EQ(
      error(GrammarKind::kStructuralTag,
            R"({"type": "structural_tag", "format": {"type": "grammar", "grammar": "root ::= root{2}"}})"),
      "f: its parts are nested in each other too deeply, or without end");

  const auto repeated = [](std::string_view text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  const auto pattern_error = [&](const std::string& pattern) {
    const std::string schema = R"({"type": "string", "pattern": ")" + pattern + "\"}";
    const std::string message = error(GrammarKind::kJsonSchema, schema);
    return message.substr(std::min(message.size(), message.rfind(": ") + 2));
  };
  for (const char* modifier : {"*", "+", "?", "{1}", "{1,2}"})
    EXPECT_EQ(pattern_error("a" + repeated(modifier, 20'000)),
              "it has 20000 repetition modifiers in a row; at most 2 are allowed");
  for (const auto& [open, close] : {std::pair("(", ")"), std::pair("(?:", ")*"), std::pair("(a|", ")")})
    EXPECT_EQ(pattern_error(repeated(open, 15'000) + "a" + repeated(close, 15'000)),
              "its groups are nested 15000 deep; at most 64 are allowed");
  EXPECT_EQ(
      error(GrammarKind::kJsonSchema,
            R"({"type": "object", "patternProperties": {"a***": {"type": "string"}}})"),
      R"(f: keyword "patternProperties" at the root is {"a***":{"type":"string"}}: it has 3 repetition modifiers )"
      "in a row; at most 2 are allowed");
  const auto is_refused = [&](const std::string& pattern) {
    return pattern_error(pattern).find("modifiers in a row") != std::string::npos;
  };
  for (const char* pattern : {"a+?b", "[*+?{}]{2}", "a\\\\**", "a{,}", "(a*)*", "[^***]", "[\\\\]***]"})
    EXPECT_FALSE(is_refused(pattern)) << pattern;
  for (const char* pattern : {"a+?*", "\\\\[***", "[*]{1}{2}{3}", "a{1,}*?"})
    EXPECT_TRUE(is_refused(pattern)) << pattern;
}

TEST_F(GrammarTest, WorkThatTakesTooLongIsAborted) {
  const auto hasty = GrammarCompiler::create(*tokenizer_, {.max_compile_seconds = 0.05}).value();
  std::string rules = "root ::= r0\n";
  for (int i = 0; i < 2000; ++i)
    rules += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " \"a\" | \"b\" r" +
             std::to_string(i + 1) + "\n";
  rules += "r2000 ::= \"x\"\n";
  const auto compiled = hasty->compile({.kind = GrammarKind::kEbnf, .text = rules});
  ASSERT_FALSE(compiled.ok());
  EXPECT_EQ(compiled.status().message,
            "ebnf: compiling its " + std::to_string(rules.size()) +
                " bytes takes too long; at most 0.05 s of processor time are allowed");
  // The thread's limit ends with the compile, and the compiler still works.
  EXPECT_TRUE(compiler_->compile({.kind = GrammarKind::kJsonObject}).ok());
  EXPECT_TRUE(hasty->compile({.kind = GrammarKind::kRegex, .text = "a"}).ok());
}

// The library has objects whose destructors must not throw, and its parser of JSON makes one for each value.
TEST_F(GrammarTest, ALimitOfTimeMayEndACompileAnywhere) {
  std::string schema = R"({"anyOf": [{})";
  for (int i = 0; i < 20'000; ++i) schema += ",{}";
  schema += "]}";
  int num_ended = 0;
  for (double seconds = 1e-6; seconds < 0.02; seconds *= 1.3) {
    const auto hasty = GrammarCompiler::create(*tokenizer_, {.max_compile_seconds = seconds}).value();
    if (!hasty->compile({.kind = GrammarKind::kJsonSchema, .text = schema}).ok()) ++num_ended;
  }
  EXPECT_GT(num_ended, 20);
}

// Builds with AddressSanitizer do not count memory, and stop such a compile by its time limit.
#if HADAL_COUNTS_MEMORY
TEST_F(GrammarTest, ACompileThatNeedsTooMuchMemoryIsAnError) {
  std::string groups;
  for (int i = 0; i < 20'000; ++i) groups += "(a|b)*";
  const auto compiled = compiler_->compile({.kind = GrammarKind::kRegex, .text = groups});
  ASSERT_FALSE(compiled.ok());
  EXPECT_EQ(compiled.status().code, StatusCode::kInvalidArgument);
  EXPECT_EQ(compiled.status().message,
            "regex: compiling its 120000 bytes takes too much memory; at most 64 MiB are allowed");
  // The thread's limit ends with the compile, and the compiler still works.
  EXPECT_TRUE(compiler_->compile({.kind = GrammarKind::kJsonObject}).ok());
  EXPECT_EQ(std::vector<char>(size_t{128} << 20, 'x').back(), 'x');
}

TEST_F(GrammarTest, ALimitOfMemoryMayEndACompileAnywhere) {
  std::string groups;
  for (int i = 0; i < 30; ++i) groups += "(a|b)*[c-e]{1,9}";
  const std::pair<GrammarKind, std::string> cases[] = {
      {GrammarKind::kJsonSchema, kPersonSchema},
      {GrammarKind::kRegex, groups},
      {GrammarKind::kEbnf, "root ::= \"a\" root \"b\" | \"\" | [0-9]+ "}};
  for (const auto& [kind, text] : cases) {
    int num_ended = 0;
    for (double bytes = 2e3;; bytes *= 1.1) {
      const auto small =
          GrammarCompiler::create(*tokenizer_, {.memory = {.compile_bytes = static_cast<int64_t>(bytes)}})
              .value();
      const auto compiled = small->compile({.kind = kind, .text = text});
      if (compiled.ok()) break;
      ++num_ended;
      ASSERT_NE(compiled.status().message.find("takes too much memory"), std::string::npos)
          << bytes << " bytes: " << compiled.status().message;
    }
    EXPECT_GT(num_ended, 5) << text;
  }
}

TEST_F(GrammarTest, APositionThatBeginsInTooManyWaysIsAnError) {
  const auto optional_rules = [](int count) {
    std::string rules = "root ::= a0\n";
    for (int i = 0; i < count; ++i)
      rules += "a" + std::to_string(i) + " ::= a" + std::to_string(i + 1) + "?\n";
    return rules + "a" + std::to_string(count) + " ::= \"x\"\n";
  };
  EXPECT_TRUE(compiler_->compile({.kind = GrammarKind::kEbnf, .text = optional_rules(20)}).ok());
  const std::string message = error_of(GrammarKind::kEbnf, optional_rules(1'200));
  EXPECT_EQ(message.rfind("ebnf: its rules begin in so many ways at once that a position takes ", 0), 0U)
      << message;
  EXPECT_TRUE(message.ends_with(" KiB; at most 128 KiB are allowed")) << message;
}

TEST_F(GrammarTest, AnAnswerWhosePositionBecomesTooLargeCanOnlyEnd) {
  const auto small = GrammarCompiler::create(*tokenizer_, {.memory = {.walked_bytes = 32 << 10}}).value();
  GrammarMatcher matcher(small->compile({.kind = GrammarKind::kRegex, .text = "(ab|ac)*"}).value());
  int num_accepted = 0;
  while (matcher.accept_token(id(num_accepted % 2 == 0 ? "a" : "b"))) ++num_accepted;
  EXPECT_GT(num_accepted, 0);
  EXPECT_TRUE(matcher.is_too_expensive());
  EXPECT_EQ(allowed_of(matcher, tokenizer_->vocab_size()), std::vector<int32_t>{eos()});
}
#endif

TEST_F(GrammarTest, EqualSpecsAreCompiledOnceAndTheCacheIsBounded) {
  std::vector<CompiledRef> seen(8);
  std::vector<std::thread> threads;
  for (CompiledRef& one : seen)
    threads.emplace_back(
        [&] { one = compiler_->compile({.kind = GrammarKind::kJsonSchema, .text = kPersonSchema}).value(); });
  for (std::thread& thread : threads) thread.join();
  for (const CompiledRef& one : seen) EXPECT_EQ(one, seen[0]);
  EXPECT_EQ(compiler_->cache_stats().num_misses, 1);
  EXPECT_EQ(compiler_->cache_stats().num_hits, 7);
  EXPECT_EQ(compiler_->cache_stats().entries, 1);

  const int64_t bound = 3 * seen[0]->size_bytes();
  const auto small =
      GrammarCompiler::create(*tokenizer_, {.vocab_size = kPaddedVocab, .cache_bytes = bound}).value();
  for (int i = 0; i < 20; ++i) {
    const std::string schema =
        R"({"type": "object", "properties": {"p)" + std::to_string(i) + R"(": {"type": "string"}}})";
    ASSERT_TRUE(small->compile({.kind = GrammarKind::kJsonSchema, .text = schema}).ok());
    EXPECT_LE(small->cache_stats().size_bytes, bound);
  }
  EXPECT_GT(small->cache_stats().entries, 0);
  EXPECT_LT(small->cache_stats().entries, 20);
  small->clear_cache();
  EXPECT_EQ(small->cache_stats().entries, 0);
  EXPECT_EQ(small->cache_stats().size_bytes, 0);
}

// A grammar with a limited string needs a separate vocabulary; grammars that need the same one share it.
TEST_F(GrammarTest, TheCacheCountsVocabulariesOnce) {
  const auto compiler = GrammarCompiler::create(*tokenizer_, {.vocab_size = kPaddedVocab}).value();
  const auto size_with = [&](const char* schema) {
    EXPECT_TRUE(compiler->compile({.kind = GrammarKind::kJsonSchema, .text = schema}).ok());
    return compiler->cache_stats().size_bytes;
  };
  const int64_t plain = size_with(R"({"type": "string"})");
  const int64_t first = size_with(R"({"type": "string", "maxLength": 9})") - plain;
  const int64_t second = size_with(R"({"type": "string", "maxLength": 8})") - plain - first;
  const int64_t vocabulary = tokenizer_->vocab_size() * 64;  // at least two texts of each token
  EXPECT_GT(first, vocabulary);
  EXPECT_LT(second, vocabulary);
  compiler->clear_cache();
  EXPECT_EQ(compiler->cache_stats().size_bytes, 0);
}

TEST_F(GrammarTest, MatchersOfOneGrammarWorkInManyThreads) {
  const CompiledRef grammar = compile(GrammarKind::kJsonSchema, kPersonSchema);
  const auto run = [&](uint32_t seed) {
    std::mt19937 random(seed);
    GrammarMatcher matcher(grammar);
    return walk(matcher, *tokenizer_, random, eos()).ids;
  };
  std::vector<std::vector<int32_t>> expected(6);
  std::vector<std::vector<int32_t>> got(6);
  for (uint32_t i = 0; i < 6; ++i) expected[i] = run(i);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 6; ++i) threads.emplace_back([&, i] { got[i] = run(i); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(got, expected);
}

TEST_F(GrammarTest, TwoTokenizersLiveInOneProcess) {
  const auto other = load_test_tokenizer("v3");
  const auto end = other->eos_id().value_or(0);
  const auto theirs = GrammarCompiler::create(*other, {.end_ids = {end}}).value();
  const CompiledRef grammar = theirs->compile({.kind = GrammarKind::kRegex, .text = "hi"}).value();
  const CompiledRef ours = compile(GrammarKind::kRegex, "hi");
  compiler_.reset();  // grammars outlive their compilers
  GrammarMatcher matcher(grammar);
  const auto first = allowed_of(matcher, other->vocab_size());
  EXPECT_FALSE(first.empty());
  for (const int32_t t : first) EXPECT_EQ(std::string_view("hi").rfind(other->token_bytes(t), 0), 0U);
  GrammarMatcher our_matcher(ours);
  for (const int32_t t : allowed_of(our_matcher))
    EXPECT_EQ(std::string_view("hi").rfind(tokenizer_->token_bytes(t), 0), 0U);
}

TEST_F(GrammarTest, CompilersRefuseWhatDoesNotFitTheTokenizer) {
  EXPECT_FALSE(GrammarCompiler::create(*tokenizer_, {.vocab_size = 10}).ok());
  EXPECT_FALSE(GrammarCompiler::create(*tokenizer_, {.end_ids = {-1}}).ok());
  EXPECT_FALSE(GrammarCompiler::create(*tokenizer_, {.end_ids = {1 << 20}}).ok());
}

}  // namespace
}  // namespace hadal
