// Reads a tokenizer.json, which consists mostly of two large tables (vocab, merges), without building a
// document of them: the tables go straight into vectors, and the rest becomes an ordinary JSON document.
// Depth and counts are bounded, so that a hostile file causes an error and not a stack overflow.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/result.h"

namespace hadal {

struct TokenizerDocument {
  nlohmann::ordered_json rest;  // everything but model.vocab and model.merges
  bool has_vocab = false;
  bool has_merges = false;
  std::vector<std::pair<std::string, int64_t>> vocab;
  std::vector<std::pair<std::string, std::string>> merges;
};

// `what` names the file in errors. The error is kDataLoss (not JSON, nested too deep, or a table entry of the
// wrong type).
Result<TokenizerDocument> read_tokenizer_document(std::string_view json, std::string_view what);

// Reads an ordinary document with the same limit on its depth.
Result<nlohmann::ordered_json> read_json(std::string_view json, std::string_view what);

}  // namespace hadal
