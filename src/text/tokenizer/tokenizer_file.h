// Reads tokenizer.json and tokenizer_config.json into plain structs: every field is checked, and anything
// unknown is an error that names it and what is supported. No tables are built here; see tokenizer.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace hadal {

struct AddedTokenSpec {
  int32_t id = 0;
  std::string content;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;
};

// SplitStep is one step of the pre-tokenizer; each step cuts every piece of the previous one.
struct SplitStep {
  std::string pattern;  // a regular expression; its matches and the text between them are the pieces
};
struct DigitsStep {
  bool individual = false;  // each digit is a piece; otherwise each run of digits
};
struct ByteLevelStep {
  bool use_regex = false;  // GPT-2's own split
};
using PreTokenizerStep = std::variant<SplitStep, DigitsStep, ByteLevelStep>;

struct TokenizerFile {
  std::vector<std::pair<std::string, int64_t>> vocab;       // token in the file's notation, id
  std::vector<std::pair<std::string, std::string>> merges;  // in order of rank
  bool ignore_merges = false;
  std::vector<AddedTokenSpec> added_tokens;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::vector<std::string> template_prefix;  // tokens that the post-processor puts before …
  std::vector<std::string> template_suffix;  // … and after a text
};

struct TokenizerConfig {
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::string bos_token;  // empty: none
  std::string eos_token;
  std::string chat_template;
};

// The errors are kDataLoss (not JSON, wrong types, inconsistent) and kUnsupported (an unknown component).
Result<TokenizerFile> parse_tokenizer_file(std::string_view json);
Result<TokenizerConfig> parse_tokenizer_config(std::string_view json);

}  // namespace hadal
