#include "tests/text/grammar_walk.h"

#include <algorithm>

#include "tests/source_dir.h"

namespace hadal {
namespace {

const Tokenizer& tiny_tokenizer() {
  static const auto tokenizer = Tokenizer::load(source_dir() + "/models/hadal-tiny").value();
  return *tokenizer;
}

// Accepts whole characters only, because the text that tokens of single bytes spell is not always valid (the
// library allows surrogates).
bool is_text(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const auto lead = static_cast<unsigned char>(bytes[i]);
    const size_t size = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead >= 0x80 && (lead < 0xC2 || lead > 0xF4)) return false;
    for (size_t k = 1; k < size; ++k)
      if (i + k >= bytes.size() || (static_cast<unsigned char>(bytes[i + k]) & 0xC0) != 0x80) return false;
    i += size;
  }
  return true;
}

}  // namespace

void GrammarTest::SetUp() {
  if (!grammar_available()) GTEST_SKIP() << "built without xgrammar";
  tokenizer_ = &tiny_tokenizer();
  compiler_ = GrammarCompiler::create(*tokenizer_, {.vocab_size = kPaddedVocab}).value();
}

CompiledRef GrammarTest::compile(GrammarKind kind, const std::string& text) {
  auto compiled = compiler_->compile({.kind = kind, .text = text});
  EXPECT_TRUE(compiled.ok()) << compiled.status().message << "\n" << text;
  return compiled.ok() ? *compiled : nullptr;
}

std::string GrammarTest::error_of(GrammarKind kind, const std::string& text) {
  const auto compiled = compiler_->compile({.kind = kind, .text = text});
  return compiled.ok() ? "none: it compiles" : compiled.status().message;
}

std::vector<int32_t> allowed_of(GrammarMatcher& matcher, int64_t vocab_size) {
  std::vector<uint32_t> words((vocab_size + 31) / 32);
  matcher.fill_mask(words);
  std::vector<int32_t> ids;
  for (size_t t = 0; t < words.size() * 32; ++t)
    if ((words[t / 32] >> (t % 32) & 1U) != 0) ids.push_back(static_cast<int32_t>(t));
  return ids;
}

Walk walk(GrammarMatcher& matcher, const Tokenizer& tokenizer, std::mt19937& random, int32_t eos) {
  constexpr size_t kLongest = 3000;
  Walk out;
  while (out.ids.size() < kLongest) {
    const std::vector<int32_t> ids = allowed_of(matcher);
    if (ids.empty() || ids.back() >= tokenizer.vocab_size()) {
      ADD_FAILURE() << (ids.empty() ? "an empty mask" : "an id without a token is allowed");
      return out;
    }
    int32_t choice = ids[random() % ids.size()];
    for (int i = 0; i < 100 && !is_text(tokenizer.token_bytes(choice)); ++i)
      choice = ids[random() % ids.size()];
    const bool may_end = std::binary_search(ids.begin(), ids.end(), eos);
    if (may_end != matcher.is_complete() && ids.size() > 1)
      ADD_FAILURE() << "the end is allowed when it is not whole";
    if (may_end && random() % 4 == 0) choice = eos;
    for (size_t i = 0; i < out.ids.size() / 100 && choice != eos; ++i) {
      const int32_t other = ids[random() % ids.size()];
      const auto is_blank = [&](int32_t t) {
        return tokenizer.token_bytes(t).find_first_not_of(" \n\r\t") == std::string_view::npos;
      };
      const bool closes = tokenizer.token_bytes(other).find_first_of("\"}],:") != std::string_view::npos;
      if (other == eos || closes || (is_blank(choice) && !is_blank(other))) choice = other;
    }
    if (!matcher.accept_token(choice)) {
      ADD_FAILURE() << "an allowed token was not accepted: " << choice;
      return out;
    }
    if (choice == eos) {
      out.is_whole = true;
      return out;
    }
    out.ids.push_back(choice);
    out.text += tokenizer.token_bytes(choice);
  }
  return out;
}

}  // namespace hadal
