// This is the fixture of the grammar tests: compilers for the bundled tokenizer, masks as lists of ids,
// random walks over allowed tokens, and the schemas that several files use.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/grammar.h"
#include "text/tokenizer/tokenizer.h"

namespace hadal {

using CompiledRef = std::shared_ptr<const CompiledGrammar>;

constexpr int64_t kPaddedVocab = 4101;  // five ids without a token, and not a multiple of 32

// The test is skipped in a build without xgrammar.
class GrammarTest : public ::testing::Test {
 protected:
  void SetUp() override;

  CompiledRef compile(GrammarKind kind, const std::string& text);
  // Returns the message of the error, or "none: it compiles".
  std::string error_of(GrammarKind kind, const std::string& text);
  int32_t id(std::string_view token) const { return tokenizer_->token_to_id(token).value(); }
  int32_t eos() const { return tokenizer_->eos_id().value(); }

  const Tokenizer* tokenizer_ = nullptr;       // of models/hadal-tiny
  std::unique_ptr<GrammarCompiler> compiler_;  // with a vocabulary of kPaddedVocab
};

// Returns the ids whose bits are set in the next mask, in ascending order.
std::vector<int32_t> allowed_of(GrammarMatcher& matcher, int64_t vocab_size = kPaddedVocab);

struct Walk {
  std::vector<int32_t> ids;  // without the end token
  std::string text;
  bool is_whole = false;
};

// Takes random allowed tokens until the answer ends or has 3,000 of them. White space and free text would
// continue for ever, so short tokens and the end are preferred, increasingly so as the answer grows.
Walk walk(GrammarMatcher& matcher, const Tokenizer& tokenizer, std::mt19937& random, int32_t eos);

}  // namespace hadal
