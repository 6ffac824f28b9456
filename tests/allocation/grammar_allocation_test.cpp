// Tests an allocation that fails while a grammar is compiled or used: the caller gets std::bad_alloc and
// never an error that blames the grammar, the failure is not remembered, and the next compile succeeds.
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/memory_reserve.h"
#include "tests/allocation/failing_allocator.h"
#include "tests/source_dir.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/tokenizer.h"

namespace hadal {
namespace {

using testing::Failure;
using testing::Victims;

class FailingGrammar : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!grammar_available()) GTEST_SKIP() << "built without xgrammar";
    tokenizer_ = Tokenizer::load(source_dir() + "/models/hadal-tiny").value();
    compiler_ = GrammarCompiler::create(*tokenizer_).value();
    testing::mark_this_thread();
  }

  const MemoryReserve reserve_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<GrammarCompiler> compiler_;
};

// Calls `work` while each of its allocations fails in turn. Returns how many calls threw std::bad_alloc.
template <typename Work>
int64_t fail_each_allocation(Work work) {
  int64_t num_failed = 0;
  for (int64_t k = 1;; ++k) {
    SCOPED_TRACE(fmt::format("call {}", k));
    testing::fail_allocation(k, Victims::kMarked, Failure::kWithHandler);
    try {
      work();
    } catch (const std::bad_alloc&) {
      ++num_failed;
    }
    if (!testing::stop_failing() || ::testing::Test::HasFailure()) return num_failed;
  }
}

TEST_F(FailingGrammar, ACompileWithoutMemoryThrowsAndIsNotRemembered) {
  const std::pair<GrammarKind, std::string> cases[] = {
      {GrammarKind::kRegex, "[a-c]+x"},
      {GrammarKind::kJsonSchema, R"({"type": "string", "pattern": "^a+$"})"},
      {GrammarKind::kEbnf, "root ::= \"<｜User｜>\" | \"b\""},
  };
  for (const auto& [kind, text] : cases) {
    const GrammarSpec spec{.kind = kind, .text = text};
    const int64_t num_failed = fail_each_allocation([&] {
      compiler_->clear_cache();
      const auto compiled = compiler_->compile(spec);
      EXPECT_TRUE(compiled.ok()) << text << ": " << compiled.status().message;
    });
    EXPECT_GT(num_failed, 100) << text;
    EXPECT_TRUE(compiler_->compile(spec).ok()) << text;
    EXPECT_EQ(compiler_->cache_stats().entries, 1) << text;
    compiler_->clear_cache();
    EXPECT_EQ(compiler_->cache_stats().size_bytes, 0) << text;
  }
}

// A broken grammar without memory fails with its own error or with std::bad_alloc. (The library truncates its
// message where memory ends.) The library also warns that it ignores a part of the second grammar.
TEST_F(FailingGrammar, ABrokenGrammarWithoutMemoryIsNoOtherError) {
  for (const char* const text : {"(a", "a$b"}) {
    const GrammarSpec broken{.kind = GrammarKind::kRegex, .text = text};
    const std::string error = compiler_->compile(broken).status().message;
    EXPECT_NE(error.find("regex: "), std::string::npos) << error;
    fail_each_allocation([&] {
      const auto fresh = [&] {
        const testing::Exempt exempt;
        return GrammarCompiler::create(*tokenizer_).value();
      }();
      const auto compiled = fresh->compile(broken);
      ASSERT_FALSE(compiled.ok()) << text;
      EXPECT_EQ(compiled.status().code, StatusCode::kInvalidArgument) << text;
      EXPECT_TRUE(error.starts_with(compiled.status().message)) << compiled.status().message;
    });
  }
}

TEST_F(FailingGrammar, AMaskWithoutMemoryIsNotTooExpensive) {
  const auto grammar =
      compiler_
          ->compile({.kind = GrammarKind::kJsonSchema,
                     .text = R"({"type": "object", "properties": {"a": {"type": "integer"}}})"})
          .value();
  const size_t words = (static_cast<size_t>(tokenizer_->vocab_size()) + 31) / 32;
  const std::vector<int32_t> ids = tokenizer_->encode("{\"a\": 1}", false);
  const int64_t num_failed = fail_each_allocation([&] {
    GrammarMatcher matcher(grammar);
    std::vector<uint32_t> mask(words);
    try {
      for (const int32_t id : ids) {
        mask.assign(words, 0);
        matcher.fill_mask(mask);
        EXPECT_TRUE(matcher.accept_token(id)) << id;
      }
    } catch (const std::bad_alloc&) {
      EXPECT_FALSE(matcher.is_too_expensive());
      throw;
    }
    EXPECT_FALSE(matcher.is_too_expensive());
  });
  EXPECT_GT(num_failed, 10);
}

// If the library failed in the middle of a token, its matcher is not used again.
TEST_F(FailingGrammar, AMatcherThatFailedWithinATokenThrowsFromThenOn) {
  const auto grammar = compiler_->compile({.kind = GrammarKind::kRegex, .text = "(ab|ac)+"}).value();
  const int32_t a = tokenizer_->encode("a", false).at(0);
  int64_t num_lost = 0;
  fail_each_allocation([&] {
    auto matcher = [&] {
      const testing::Exempt exempt;
      return GrammarMatcher(grammar);
    }();
    try {
      EXPECT_TRUE(matcher.accept_token(a));
    } catch (const std::bad_alloc&) {
      ++num_lost;
      EXPECT_THROW(matcher.accept_token(a), Error);
      std::vector<uint32_t> mask((static_cast<size_t>(tokenizer_->vocab_size()) + 31) / 32);
      EXPECT_THROW(matcher.fill_mask(mask), Error);
      throw;
    }
  });
  EXPECT_GT(num_lost, 0);
}

// Threads that wait for a compile which runs out of memory get std::bad_alloc too, or compile the grammar
// themselves.
TEST_F(FailingGrammar, ThreadsThatWaitForACompileWithoutMemoryDoNotWaitForEver) {
  const GrammarSpec spec{.kind = GrammarKind::kRegex, .text = "[a-c]+y"};
  for (int64_t k = 10; k < 200; k += 10) {
    compiler_->clear_cache();
    std::vector<std::thread> others;
    testing::fail_allocation(k, Victims::kMarked, Failure::kAtOnce);
    {
      const testing::Exempt exempt;
      for (int i = 0; i < 3; ++i) {
        others.emplace_back([&] {
          try {
            EXPECT_TRUE(compiler_->compile(spec).ok());
          } catch (const std::bad_alloc&) {
          }
        });
      }
    }
    try {
      EXPECT_TRUE(compiler_->compile(spec).ok());
    } catch (const std::bad_alloc&) {
    }
    testing::stop_failing();
    for (std::thread& other : others) other.join();
    EXPECT_TRUE(compiler_->compile(spec).ok());
  }
}

}  // namespace
}  // namespace hadal
