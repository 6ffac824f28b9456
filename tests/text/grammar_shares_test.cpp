// Tests what grammars and their parts share: one budget of time for all expressions of a compile, and one
// vocabulary for all grammars that need the same added tokens, which the caller can refuse.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/text/grammar_walk.h"
#include "text/grammar/grammar.h"
#include "text/grammar/grammar_backend.h"

namespace hadal {
namespace {

// A backend that only checks expressions, and finds those broken that contain a parenthesis.
class Checker : public GrammarBackend {
 public:
  Result<std::shared_ptr<const BackendGrammar>> compile(const GrammarSpec&, bool, const CompileBudget&,
                                                        const SharedPartHold&) override {
    return unsupported("it only checks expressions");
  }
  Result<void> check_regex(const std::string& regex, std::string_view field,
                           const CompileBudget& budget) override {
    checked.push_back(regex);
    // This expression works until the time is over, as the library does.
    while (regex == "slow" && budget.left_s() > 0.0) {
    }
    if (regex == "slow" || regex.find('(') != regex.npos) return invalid_argument("{}: it is broken", field);
    return {};
  }
  std::vector<std::string> checked;
};

TEST(CompileBudget, ExpressionsAreTriedUntilOneIsBroken) {
  Checker checker;
  const Result<void> found =
      check_patterns(checker, {{"/a", "fine"}, {"/b", "("}, {"/c", "fine"}}, "f", CompileBudget(3600.0));
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().message, "f: \"pattern\" at /b: it is broken");
  EXPECT_EQ(checker.checked, (std::vector<std::string>{"fine", "("}));
}

// The limit of a compile would otherwise hold for each of its expressions.
TEST(CompileBudget, IsOneForAllExpressions) {
  Checker checker;
  const CompileBudget budget(0.01);
  EXPECT_TRUE(check_patterns(checker, {{"/a", "fine"}, {"/b", "slow"}, {"/c", "("}}, "f", budget).ok())
      << "an expression that ran out of time is not blamed";
  EXPECT_EQ(checker.checked.back(), "slow");
  const size_t num_checked = checker.checked.size();
  EXPECT_TRUE(check_patterns(checker, {{"/c", "("}, {"/d", "("}}, "f", budget).ok());
  EXPECT_LE(checker.checked.size(), num_checked + 1);
}

TEST_F(GrammarTest, ACompileThatHasUsedItsTimeBlamesNoExpression) {
  const auto hasty = GrammarCompiler::create(*tokenizer_, {.max_compile_seconds = 1e-6}).value();
  const std::string schema = R"({"type": "string", "pattern": "("})";
  const auto message = [&](GrammarCompiler& compiler) {
    return compiler.compile({.kind = GrammarKind::kJsonSchema, .text = schema, .field = "f"})
        .status()
        .message;
  };
  EXPECT_TRUE(message(*compiler_).starts_with("f: \"pattern\" at the root: ")) << message(*compiler_);
  EXPECT_FALSE(message(*hasty).starts_with("f: \"pattern\"")) << message(*hasty);
}

// Counts the vocabularies that compiles ask for.
struct Asked {
  std::map<std::shared_ptr<const void>, int64_t> parts;
  bool refuses = false;

  SharedPartHold hold() {
    return [this](std::shared_ptr<const void> part, int64_t bytes) -> Result<void> {
      if (refuses) return make_status(StatusCode::kResourceExhausted, "no room for {} bytes", bytes);
      parts[std::move(part)] = bytes;
      return {};
    };
  }
};

GrammarSpec limited(int length) {
  return {.kind = GrammarKind::kJsonSchema,
          .text = R"({"type": "string", "maxLength": )" + std::to_string(length) + "}"};
}

TEST_F(GrammarTest, OnlyAGrammarThatNeedsAnotherVocabularyAsksForIt) {
  Asked asked;
  ASSERT_TRUE(compiler_->compile({.kind = GrammarKind::kRegex, .text = "a+"}, asked.hold()).ok());
  EXPECT_TRUE(asked.parts.empty()) << "all grammars share the tokenizer's own vocabulary";
  const CompiledRef nine = compiler_->compile(limited(9), asked.hold()).value();
  const CompiledRef eight = compiler_->compile(limited(8), asked.hold()).value();
  ASSERT_EQ(asked.parts.size(), 1U) << "both need the same one";
  EXPECT_EQ(asked.parts.begin()->first, nine->shared_part());
  EXPECT_EQ(asked.parts.begin()->second, nine->shared_bytes());
  EXPECT_EQ(eight->shared_part(), nine->shared_part());
  EXPECT_GT(nine->shared_bytes(), tokenizer_->vocab_size() * 64) << "at least two texts of each token";
  const CompiledRef user =
      compiler_->compile({.kind = GrammarKind::kEbnf, .text = "root ::= \"<｜User｜>\""}, asked.hold())
          .value();
  EXPECT_EQ(asked.parts.size(), 2U);
  EXPECT_NE(user->shared_part(), nine->shared_part());
}

TEST_F(GrammarTest, AVocabularyLivesAsLongAsAGrammarThatUsesIt) {
  CompiledRef nine = compiler_->compile(limited(9)).value();
  const std::weak_ptr<const void> first = nine->shared_part();
  compiler_->clear_cache();
  const CompiledRef eight = compiler_->compile(limited(8)).value();
  EXPECT_EQ(eight->shared_part(), first.lock()) << "there is never a second one for the same tokens";
  nine.reset();
  EXPECT_FALSE(first.expired());
  compiler_->clear_cache();
  EXPECT_FALSE(first.expired());
  GrammarMatcher matcher(eight);
  EXPECT_FALSE(allowed_of(matcher).empty());
}

TEST_F(GrammarTest, AVocabularyThatNoGrammarUsesIsDropped) {
  std::weak_ptr<const void> part;
  {
    const CompiledRef grammar = compiler_->compile(limited(9)).value();
    part = grammar->shared_part();
    EXPECT_FALSE(part.expired());
  }
  EXPECT_FALSE(part.expired()) << "the cache has the grammar";
  compiler_->clear_cache();
  EXPECT_TRUE(part.expired());
}

TEST_F(GrammarTest, AVocabularyThatIsRefusedIsNeitherMadeNorRemembered) {
  Asked asked;
  asked.refuses = true;
  for (int i = 0; i < 2; ++i) {
    const auto compiled = compiler_->compile(limited(9), asked.hold());
    ASSERT_FALSE(compiled.ok());
    EXPECT_EQ(compiled.status().code, StatusCode::kResourceExhausted);
    EXPECT_TRUE(compiled.status().message.starts_with("no room for ")) << compiled.status().message;
  }
  EXPECT_EQ(compiler_->cache_stats().num_misses, 2);
  asked.refuses = false;
  EXPECT_TRUE(compiler_->compile(limited(9), asked.hold()).ok());
  EXPECT_EQ(asked.parts.size(), 1U);
}

TEST_F(GrammarTest, ThreadsThatNeedAVocabularyAtTheSameTimeMakeItOnce) {
  std::vector<CompiledRef> grammars(6);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < grammars.size(); ++i)
    threads.emplace_back(
        [&, i] { grammars[i] = compiler_->compile(limited(static_cast<int>(i) + 1)).value(); });
  for (std::thread& thread : threads) thread.join();
  for (const CompiledRef& grammar : grammars) EXPECT_EQ(grammar->shared_part(), grammars[0]->shared_part());
}

}  // namespace
}  // namespace hadal
